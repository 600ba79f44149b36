"""A converted model: one graph of distributed layers that agrees once per call, not once per layer.

call      one all-reduce: same model, same step, a known structure of input, modes, parameters and settings on all workers?
          unchanged since the last call: the layers inside follow its script (`plan`) and send no agreement of their own
          changed anywhere: every layer agrees, and plans anew if it has no plan, once
backward  one all-reduce where the cotangent enters; the operators inside follow in the graph's order
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...grid import Layout
from ...partition import Partition
from ..engine.agreement import Structure, agree_layout, agree_plan, agreement, is_on, key_of
from ..engine.layer import Layer
from ..engine.mode import agree_mode, held_by, looks_of, settings_of, without_shapes
from ..engine.module import Module, outside_of_graphs, problem_with_inference, refuse_transforms
from ..engine.operator import Operator, Ticket, apply
from ..engine.plans import KEPT, CallScript, LayerPlans, script
from ..layers.dropout import DistributedDropout
from ..parameters.blocks import holders_of_blocks
from ..parameters.gradient_buckets import BucketMember, GradientBucket, bucket_members_of, buckets_in_use, buckets_of
from ..parameters.replicas import Replica, agree_replicas, is_due
from ..primitives.repartition import Repartition
from ..windows.windowed_layer import as_batch
from .attended import Attended
from .inputs import Inputs
from .moves import Replicated
from .ranges import problem_with
from .rehearsal import Rehearsal

PARTS = ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set")
"""Where torch keeps what a module has."""


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
    buckets: list[GradientBucket]
    script: CallScript = field(default_factory=CallScript)


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
    _inputs: Inputs
    _rehearsal: Rehearsal

    def _start(
        self,
        model: torch.nn.Module,
        inputs: Inputs,
        P_x: Partition,
        P_y: Any,
        rehearsal: Rehearsal,
        returns: type = dict,
        nth: str = "",
    ) -> None:
        """Take over the model's modules and say where it lives; called once, after it is built.

        The modules keep their containers and their order: optimisers number parameters by it.
        """
        for kind in PARTS:
            getattr(self, kind).clear()
            getattr(self, kind).update(getattr(model, kind))
        self.P_x, self.P_y, self._inputs, self._rehearsal = P_x, P_y, inputs, rehearsal
        self._returns = returns  # which kind of dict, if it is one
        self._says = rehearsal.name
        nth = nth or f"#{P_x.transport.ordinal(self._says)}"
        self._ticket = Ticket(key_of(f"{self._says} {P_x.ranks} {nth}"), 0)
        self._plans = LayerPlans()
        self._compared: tuple[int, ...] | None = None
        """Which parameters were those whose replicas were compared last; None: to be compared."""
        self._copies = 0
        self._meet = Passed(P_x.transport, P_x.team, self._says)

    def recompile(self) -> Any:
        """Torch's, whose wrapper around calls prints the generated code when one fails."""
        code = super().recompile()
        if "__call__" in vars(type(self)):
            del type(self).__call__
        return code

    def __deepcopy__(self, memo: dict) -> DistributedModel:
        self._copies += 1
        parts = torch.nn.Module()
        for kind in PARTS:
            getattr(parts, kind).update(copy.deepcopy(getattr(self, kind), memo))
        twin = memo[id(self)] = DistributedModel(parts, copy.deepcopy(self.graph), self._get_name())
        nth = f"copy {self._copies} of {self._ticket.key}"
        twin._start(parts, self._inputs, self.P_x, self.P_y, self._rehearsal, self._returns, nth)
        twin.training = self.training
        holders = [module for module in twin.modules() if "_spreads" in module.__dict__]
        holders_of_blocks.update(dict.fromkeys(holders, self.P_x.transport))
        for name, value in self.__dict__.items():
            if "_hook" in name or name not in twin.__dict__:
                twin.__dict__[name] = copy.deepcopy(value, memo)
        return twin

    def __reduce__(self) -> Any:
        return self.P_x.transport.__reduce__()  # refuses, and says what to do

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return outside_of_graphs(DistributedModel._called, self, *args, **kwargs)
        return self._called(*args, **kwargs)

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        inputs, problem = self._inputs.bound(args, kwargs)
        refuse_transforms(self, self._says, inputs)
        if not self.P_x.active:
            self._draw()
            return self._nothing(inputs)
        if problem is None and self._inputs.limits:
            problem = self._problem_with_indices(inputs)
        problem = problem or problem_with_inference(self.parameters(), inputs)
        modules = list(self.modules())
        structure = self._structure(inputs, modules) if problem is None else None
        new = self._compared is None or True in [m.__dict__.get("_replicas_are_new") for m in modules]
        plan = self._plans.find(structure) if problem is None and not (new and is_on()) else None
        ticket = self._ticket.called_again()
        transport, team = self.P_x.transport, self.P_x.team
        number = plan.number if plan is not None else 0
        number = agree_plan(transport, team, self._says, ticket.number, number, problem)
        self._ticket = ticket  # a call counts when all have joined it
        changed = plan is None or not number
        if changed:
            self._plans.begin()
            parameters = tuple(map(id, self.parameters()))
            mode, new = self._mode(modules), new or parameters != self._compared
            if agree_mode(transport, team, self._says, mode, self, new):
                agree_replicas(transport, team, self._says, self._replicas())
            if is_on():
                self._compared = parameters
                for layer in (module for module in modules if isinstance(module, Layer)):
                    layer.__dict__["_replicas_are_new"] = False
            run = Run(
                self._balancing(inputs),
                buckets_of(self._borrowers(), self._ticket.key),
            )
        else:
            assert plan is not None
            run = plan.assigned["run"]
        if is_due(ticket.call):
            agree_replicas(transport, team, self._says, self._replicas())
        own = tuple(x if move is None else move(x) for x, move in zip(inputs, run.balance, strict=True))
        with agreement(is_on() and changed), run.script.running(), buckets_in_use(run.buckets, ticket.call):
            y = super().__call__(*own)
        if changed:  # kept only now that it went well
            self._plans.add(structure, {"run": run})
        y = self._returns(y) if isinstance(y, dict) else y
        return _mapped(y, lambda t: apply(t, self._meet, self._ticket, True) if t.requires_grad else t)

    def _borrowers(self) -> list[BucketMember]:
        """Who uses parameters whose gradients are summed: layers, and what the graph does with others."""
        outside = [m.borrower(self) for m in self.modules() if isinstance(m, Replicated)]
        layers = bucket_members_of([m for m in self.modules() if isinstance(m, Layer)])
        return layers + [borrower for borrower in outside if borrower is not None]

    def _problem_with_indices(self, inputs: tuple[Tensor, ...]) -> str | None:
        """Indices that the embeddings of the model have not, which this worker alone would see."""
        limits = self._inputs.limits
        named = [(x, limits[key]) for key, x in zip(self._inputs.partitions, inputs, strict=True) if key in limits]
        return next((f"an embedding {problem}" for x, rows in named if (problem := problem_with(x, rows))), None)

    def _structure(self, inputs: tuple, modules: Sequence[torch.nn.Module]) -> Hashable:
        """All that the layers' plans depend on, as far as this worker can see."""
        hooks = tuple([(id(m), len(m._forward_pre_hooks), len(m._forward_hooks)) for m in modules])
        parameters = tuple([id(p) for m in modules for p in m._parameters.values()])
        looks = looks_of([v for m in modules for held in (m._parameters, m._buffers) for v in held.values()])
        settings = tuple([(m.training, settings_of(m)) for m in modules])
        return tuple(map(Structure.of, inputs)), hooks, parameters, looks, settings, self._mode_around()

    def _mode(self, modules: Sequence[torch.nn.Module]) -> Hashable:
        """What has to be the same on all workers, besides the inputs."""
        states = [(m.training, settings_of(m), without_shapes(held_by(m))) for m in modules]
        return states, self._mode_around()

    def _replicas(self) -> list[Replica]:
        """What its layers hold, and what it uses outside of them."""
        found = []
        for prefix, module in self.named_modules():
            if isinstance(module, Layer):
                own = module._replicas()
            else:
                held = dict(module.named_parameters(recurse=False))
                spreads = module.__dict__.get("_spreads", {})
                own = [Replica(name, held[name], spread) for name, spread in spreads.items() if name in held]
            found += [replica._replace(name=f"{prefix}.{replica.name}".lstrip(".")) for replica in own]
        return found

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._compared = None

    def _mode_around(self) -> Hashable:
        """What is on around the call."""
        return (
            tuple(
                (kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
            ),
        )

    def _balancing(self, inputs: tuple[Tensor, ...]) -> list[Repartition | None]:
        """The movements to balanced blocks, which layers that keep blocks and layers that make them share; where needed.

        The global shapes are known then, and rehearsed.
        """
        moves: list[Repartition | None] = []
        wholes = []
        for x, P in zip(inputs, self._inputs.partitions.values(), strict=True):
            layout, agreed = agree_layout(P.transport, P.team, self._says, P.grid, x)
            moves.append(None if layout == Layout.balanced(P.grid, layout.global_shape) else Repartition(P, P))
            wholes.append(torch.empty(layout.global_shape, dtype=agreed.dtype, device="meta"))
        if not any(x.is_meta for x in inputs):  # those of a plan were rehearsed before
            self._rehearsal.run(wholes, self)
        return moves

    def _draw(self) -> None:
        """Draw random numbers as the workers inside do, or the generators would part (`grid_random`)."""
        for node in self.graph.nodes:
            module: Any = self.get_submodule(node.target) if node.op == "call_module" else None
            if isinstance(module, Attended):
                module = module.layer()
            elif isinstance(module, MadeAtCall) and module.draws:
                module = module.layer(*node.args[1:], **node.kwargs)
            if isinstance(module, DistributedDropout):
                module.forward(torch.empty(0))

    def _nothing(self, inputs: tuple) -> Any:
        """A worker outside holds no part of any output, and can call `backward` all the same."""
        parts = [
            x.flatten()[:0] for x in (*inputs, *self.parameters()) if isinstance(x, Tensor) and x.is_floating_point()
        ]
        nothing = torch.cat(parts)
        return _mapped(self.P_y, lambda P: as_batch(nothing, inputs[0]) if P.dim > 1 else nothing)


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

    The layers of the last `KEPT` runs are kept, as no modules of the model: a new one leaves it as it was. If
    `follows_mode`, it is in the mode of `owner`, the module whose code calls it (None: the model). If `draws`, it is a
    dropout.
    """

    owner: torch.nn.Module

    def __init__(
        self,
        make: Any,
        P: Partition,
        follows_mode: bool = True,
        owner: torch.nn.Module | None = None,
        draws: bool = False,
    ) -> None:
        super().__init__()
        self.make, self.P, self.follows_mode, self.draws = make, P, follows_mode, draws
        self.__dict__["owner"] = owner if owner is not None else self  # no child of this module
        self._made: dict[str, torch.nn.Module] = {}
        """By their arguments."""
        self._last: deque[str] = deque(maxlen=KEPT)
        """The arguments in the last runs that were recorded."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.layer(*args, **kwargs)(x)

    def layer(self, *args: Any, **kwargs: Any) -> torch.nn.Module:
        """The layer for these arguments, in the mode that it follows."""
        key, run = repr((args, sorted(kwargs.items()))), script()
        if key not in self._made:
            self._made[key] = self.make(self.P, *args, **kwargs)
        if run is not None and not run.is_complete:
            self._last.append(key)
            self._made = {key: self._made[key] for key in self._last}
        return self._made[key].train(self.owner.training or not self.follows_mode)


def _mapped(y: Any, change: Any) -> Any:
    if isinstance(y, Tensor | Partition):
        return change(y)
    if isinstance(y, dict):
        return type(y)((key, _mapped(value, change)) for key, value in y.items())
    return made(type(y), [_mapped(value, change) for value in y]) if isinstance(y, tuple | list) else y


def made(kind: type, parts: Sequence[Any]) -> Any:
    """A tuple, a named one too, or a list, of these parts."""
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
