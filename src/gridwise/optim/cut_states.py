"""An optimiser whose states are cut: each worker updates its blocks of the parameters, and then all gather them.

    backward    every worker has the sum of each gradient, as always
    step        worker i updates block i of each parameter, and only it has the states of that block
    gather      everyone sends its blocks to all others                  receives (p-1)/p of the parameters' bytes

This is the middle way between whole parameters and `distribute(..., parameters="cut")`: parameters and gradients stay whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import PartitionError
from ..models.parameters.cutting import is_worth_cutting, sharding_of
from ..models.parameters.group import GatherGroup
from ..models.placement import Workers
from ..nn.parameters.blocks import BlockParameter, Sharding, is_cut
from ..nn.parameters.gradient_buckets import FULL
from ..nn.parameters.whole_tensor import refuse_blocks
from ..partition import Partition, world


def cut_states(
    kind: type[torch.optim.Optimizer],
    params: Iterable[Any],
    *args: Any,
    P: Partition | None = None,
    **settings: Any,
) -> torch.optim.Optimizer:
    """An optimiser of the class `kind` whose states are cut over the workers that hold the parameters.

    All of these workers step together. The optimiser must work element by element; it is used, saved and loaded like one of
    its class, and its checkpoints load into one whose states are whole, or on another grid, and back.

    Parameters
    ----------
    kind : the class, such as `torch.optim.AdamW`
    params, *args, **settings : its arguments; the parameters are those of a model made by `gridwise.distribute`
    P : the world of the model; default: that of this process

    Notes
    -----
    Each worker keeps 1/p of the states, p = number of workers, and receives (p-1)/p of the parameters' bytes per step.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> model = gridwise.distribute(torch.nn.Linear(3, 2), P_x)
    >>> optimizer = gridwise.optim.cut_states(torch.optim.AdamW, model.parameters(), lr=1e-3)
    >>> model(torch.ones(4, 3)).sum().backward()
    >>> optimizer.step()
    """
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise PartitionError(f"cut_states: `kind` (={kind!r}) is no class of optimisers, such as torch.optim.AdamW.")
    made: Any = type(kind.__name__, (_WithCutStates, kind), {"__module__": __name__})
    optimizer = made.__new__(made)
    optimizer.cut_kind, optimizer._partition, optimizer._blocks, optimizer._turn = kind, P or world(), {}, 0
    optimizer._groups = None
    optimizer.__init__(params, *args, **settings)
    optimizer._cut_states()
    return optimizer


class _WithCutStates(torch.optim.Optimizer):
    """What is put before a class of optimisers. Between steps, groups and states are by the whole parameters."""

    cut_kind: type[torch.optim.Optimizer]
    _partition: Partition
    _blocks: dict[Tensor, BlockParameter]
    _turn: int
    _groups: list[tuple[GatherGroup, list[Tensor]]] | None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        added, self._groups = self.param_groups[-1]["params"], None
        if strange := [p for p in added if not isinstance(p, BlockParameter) or p.sharding is None]:
            self.param_groups.pop()
            raise PartitionError(
                f"cut_states: {len(strange)} of {len(added)} parameters are those of no distributed model, so that nobody "
                "says which workers hold them.",
                fix="gridwise.distribute(model, P_x) first, then the optimiser of its parameters.",
            )
        for p in added:
            holders = p.sharding.holders
            if p not in self._blocks and not is_cut(p) and is_worth_cutting(p, holders.size):
                sharding, self._turn = sharding_of(p.shape, holders.ranks, self._turn)
                self._blocks[p] = block = BlockParameter(self._part(p, sharding), p.requires_grad)
                sharding.label(block, self._partition.transport)

    def block_of(self, parameter: Tensor) -> Tensor:
        """This worker's block of a parameter, whose states it has: it shares the parameter's memory."""
        block = self._blocks.get(parameter)
        if block is None:
            return parameter
        assert block.sharding is not None
        block.data, block.requires_grad = self._part(parameter, block.sharding), parameter.requires_grad
        block.grad = None if parameter.grad is None else self._part(parameter.grad, block.sharding)
        return block

    def _part(self, value: Tensor, sharding: Sharding) -> Tensor:
        return sharding.cut(value.detach(), self._partition.transport.rank)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step of each worker's blocks, after which all workers have all parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._of_blocks():
            refuse_blocks(self)
            super().step()
        self._gather()
        return loss

    @contextmanager
    def _of_blocks(self) -> Iterator[None]:
        """Let groups and states be by blocks, as the class of the optimiser uses them."""
        held = [(group, group["params"]) for group in self.param_groups]
        wholes = {self.block_of(p): p for _, params in held for p in params}
        blocks = {p: block for block, p in wholes.items()}
        for group, params in held:
            group["params"] = [blocks[p] for p in params]
        self.state = defaultdict(dict, {blocks.get(p, p): state for p, state in self.state.items()})
        try:
            yield
        finally:
            for group, params in held:
                group["params"] = params
            self.state = defaultdict(dict, {wholes.get(p, p): state for p, state in self.state.items()})
            for block in self._blocks.values():
                block.grad = None

    def _cut_states(self) -> None:
        """Cut states that are whole: those that the class makes when it is constructed, and those of a whole optimiser."""
        for p, block in self._blocks.items():
            state = self.state.get(p, {})
            for name, value in state.items():
                if isinstance(value, Tensor) and value.shape == p.shape != block.shape:
                    assert block.sharding is not None
                    state[name] = self._part(value, block.sharding).clone()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch; a state of whole tensors is cut."""
        super().load_state_dict(state_dict)
        self._cut_states()

    # The gather

    @torch.no_grad()
    def _gather(self) -> None:
        if self._groups is None:
            self._groups = list(self._in_messages())
        pending = []
        for group, params in self._groups:
            pending.append(group.begin([self.block_of(p).detach() for p in params], [p.detach() for p in params])[0])
            if len(pending) > 1:
                pending.pop(0).wait()
        for request in pending:
            request.wait()
        for p in self._blocks:
            torch.autograd.graph.increment_version(p)  # it has been written to through its memory

    def _in_messages(self) -> Iterator[tuple[GatherGroup, list[Tensor]]]:
        """The parameters that are gathered together: of one dtype and device, on the same workers."""
        alike: dict[Any, list[list[Tensor]]] = {}
        for p, block in self._blocks.items():
            assert block.sharding is not None
            messages = alike.setdefault((p.dtype, p.device, tuple(sorted(block.sharding.holders.ranks))), [])
            if not messages or sum(each.nbytes for each in messages[-1]) + p.nbytes > FULL:
                messages.append([])
            messages[-1].append(p)
        for messages in alike.values():
            for params in messages:
                shardings = [self._blocks[p].sharding for p in params]
                workers = Workers(self._partition.transport, shardings[0].holders)  # type: ignore[union-attr]
                name = f"parameters after a step of {type(self).__name__}"
                yield GatherGroup(workers, name, shardings, sum(p.nbytes for p in params)), params  # type: ignore[arg-type]
