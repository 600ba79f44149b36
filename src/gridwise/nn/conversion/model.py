"""A converted model: one graph of distributed layers that agrees once per call, not once per layer.

call      one all-reduce: same model, same step, a known structure of input, modes and frozen parameters on all workers?
          unchanged since the last call: the layers inside follow its script (`plan`) and send no agreement of their own
          changed anywhere: every layer agrees, and plans anew if it has no plan, once
backward  one all-reduce where the cotangent enters; the operators inside follow in the graph's order
"""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...grid import Layout
from ...partition import Partition
from ..agreement import Structure, agree_layout, agree_mode, agree_plan, agreement, is_on, key_of
from ..layer import Layer
from ..lending import Loan, lent, loans_of
from ..module import Module
from ..operator import Operator, Ticket, apply
from ..plan import Plans, Script
from ..repartition import Repartition
from .held import know


class Passed(Operator):
    """The identity, both ways: a place in the graph where the workers meet."""

    @property
    def adjoint(self) -> Passed:
        return self

    def __call__(self, x: Tensor) -> Tensor:
        return x


@dataclass
class Run:
    """How a model is run with one kind of input."""

    balance: list[Repartition | None]
    """What brings each input to balanced blocks, where it is not."""
    loans: list[Loan]
    script: Script = field(default_factory=Script)


class DistributedModel(torch.fx.GraphModule):
    """A model on a grid; made by `distribute`.

    Attributes
    ----------
    P_x : the partition of the input; blocks that are not balanced are moved first
    P_y : the partition of the output, or a tuple of them. Where the model gathers space (a flatten before a classifier),
        the batch is cut instead: then `P_y` is not `P_x`
    """

    P_x: Partition
    P_y: Any

    def start(self, model: torch.nn.Module, P_x: Partition, P_y: Any, name: str) -> None:
        """Take over the model's modules and say where it lives; called once, after it is built.

        The modules keep their containers and their order: optimisers number parameters by it.
        """
        for kind in ("_modules", "_parameters", "_buffers"):
            getattr(self, kind).clear()
            getattr(self, kind).update(getattr(model, kind))
        self.P_x, self.P_y, self._name = P_x, P_y, name
        self._says = f"the distributed {name} on {P_x.shape}"
        self._ticket = Ticket(key_of(f"{self._says} {P_x.ranks} #{P_x.transport.ordinal(self._says)}"), 0)
        self._plans = Plans()
        self._meet = Passed(P_x.transport, P_x.team, self._says)

    def __deepcopy__(self, memo: dict) -> DistributedModel:
        parts = torch.nn.Module()
        for kind in ("_modules", "_parameters", "_buffers"):
            getattr(parts, kind).update(copy.deepcopy(getattr(self, kind), memo))
        twin = memo[id(self)] = DistributedModel(parts, copy.deepcopy(self.graph), self._get_name())
        twin.start(parts, self.P_x, self.P_y, self._name)
        twin.training = self.training
        if "_spreads" in self.__dict__:
            know(twin, dict(self.__dict__["_spreads"]), self.P_x.transport)
        return twin

    def __call__(self, *inputs: Any) -> Any:
        if not self.P_x.active:
            return self._nothing(inputs)
        plan = self._plans.find(self._structure(inputs))
        ticket = self._ticket.called_again()
        transport, team = self.P_x.transport, self.P_x.team
        number = plan.number if plan is not None else 0
        number = agree_plan(transport, team, self._says, ticket.number, number, None)
        self._ticket = ticket  # a call counts when all have joined it
        changed = plan is None or not number
        if changed:
            self._plans.count += 1
            agree_mode(transport, team, self._says, self._mode())
            run = Run(
                [self._balancing(x) for x in inputs],
                loans_of([m for m in self.modules() if isinstance(m, Layer)], self._ticket.key),
            )
        else:
            assert plan is not None
            run = plan.assigned["run"]
        own = tuple(x if move is None else move(x) for x, move in zip(inputs, run.balance, strict=True))
        with agreement(is_on() and changed), run.script.running(), lent(run.loans, ticket.call):
            y = super().__call__(*own)
        if changed:  # kept only now that it went well; layers that it has made at this call count from now on
            self._plans.add(self._structure(inputs), {"run": run})
        return _mapped(y, lambda t: apply(t, self._meet, self._ticket, True) if t.requires_grad else t)

    def _structure(self, inputs: tuple) -> Hashable:
        """All that the layers' plans depend on, as far as this worker can see."""
        return tuple(map(_known, inputs)), tuple(map(id, self.modules())), self._mode()

    def _mode(self) -> Hashable:
        """What has to be the same on all workers, besides the inputs."""
        return (
            tuple([module.training for module in self.modules()]),
            tuple([(p.requires_grad, p.dtype) for p in self.parameters()]),
            tuple(
                (kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
            ),
        )

    def _balancing(self, x: Any) -> Repartition | None:
        """The movement to balanced blocks, which layers that keep blocks and layers that make them share; if needed."""
        if not isinstance(x, Tensor):
            return None
        P_x = self.P_x
        layout, _ = agree_layout(P_x.transport, P_x.team, self._says, P_x.grid, x)
        return None if layout == Layout.balanced(P_x.grid, layout.global_shape) else Repartition(P_x, P_x)

    def _nothing(self, inputs: tuple) -> Any:
        """A worker outside holds no part of any output, and can call `backward` all the same."""
        parts = [
            x.flatten()[:0] for x in (*inputs, *self.parameters()) if isinstance(x, Tensor) and x.is_floating_point()
        ]
        return _mapped(self.P_y, lambda _: torch.cat(parts))


class GlobalShape(Module):
    """The shape of the whole tensor of which each worker has a block: what ``x.shape`` says in the sequential model."""

    _keeps_plans = True

    def __init__(self, P_x: Partition) -> None:
        super().__init__()
        self.P_x = P_x
        self._takes_part(P_x)

    def _distdl_module_setup(self, input: tuple[Tensor]) -> None:
        assert self._transport is not None
        self.layout, _ = agree_layout(self._transport, self._team, self._says, self.P_x.grid, input[0])

    def forward(self, x: Tensor) -> torch.Size:
        return torch.Size(self.layout.global_shape)


class MadeAtCall(torch.nn.Module):
    """A function of the model as a layer, made for each set of arguments that it is called with.

    If `follows_mode`, it is in the mode of `owner`, the module whose code calls it (None: the model).
    """

    owner: torch.nn.Module

    def __init__(
        self, make: Any, P: Partition, follows_mode: bool = True, owner: torch.nn.Module | None = None
    ) -> None:
        super().__init__()
        self.make, self.P, self.follows_mode = make, P, follows_mode
        self.__dict__["owner"] = owner if owner is not None else self  # no child of this module
        self.layers = torch.nn.ModuleDict()
        self._names: dict[str, str] = {}

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        key = repr((args, sorted(kwargs.items())))
        if key not in self._names:
            self._names[key] = f"call{len(self._names)}"
            self.layers[self._names[key]] = self.make(self.P, *args, **kwargs)
        layer = self.layers[self._names[key]]
        return layer.train(self.owner.training or not self.follows_mode)(x)


def _known(x: Any) -> Hashable:
    """What is known of an argument before the call: of tensors their structure, of other values all."""
    if isinstance(x, Tensor):
        return Structure.of(x)
    if isinstance(x, dict):
        return tuple((key, _known(value)) for key, value in x.items())
    return tuple(map(_known, x)) if isinstance(x, tuple | list) else repr(x)


def _mapped(y: Any, change: Any) -> Any:
    if isinstance(y, Tensor | Partition):
        return change(y)
    if isinstance(y, dict):
        return type(y)((key, _mapped(value, change)) for key, value in y.items())
    return type(y)(_mapped(value, change) for value in y) if isinstance(y, tuple | list) else y
