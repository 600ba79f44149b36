"""One gather in one call: the nodes of autograd, what backward gathers again, and what runs ahead.

    forward    blocks ──► ended ──► gathered ──► operators          begins the next gathers, waits for its own
    backward   blocks ◄── ended ◄── gathered ◄── operators          operators that have saved a parameter gather it again;
                                                                     `gathered` drops it and begins the sum of its gradient,
                                                                     `ended` waits for that
    saved      a reference to the gather, in place of the parameter or of a view or cast of it

The first backward notes in which order parameters are gathered again; from then on the next ones run ahead. All workers run
the same nodes in one order, so they gather alike. Under `torch.utils.checkpoint` and hooks of the user nothing is replaced:
the former gathers again by itself, the latter keep what they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...comm.messages.requests import Request
from ...nn.engine.agreement import key_of
from ...nn.engine.operator import CallId, apply, meet, prepare
from ...nn.parameters.gradient_wire import current_wire
from ...nn.windows.saved_input import check_version, may_hook
from ...torch_internals.autograd import at_end_of_backward, current_node, run_last
from ...torch_internals.tensors import storage_key, version_of, with_lazy_bits
from .group import BlockSum, GatherGroup


class GatherSchedule:
    """The gathers of a list of steps, in their order, and what has been learnt about backward."""

    def __init__(self, groups: Sequence[GatherGroup], prefetch_bytes: int) -> None:
        self.groups, self.prefetch_bytes = groups, prefetch_bytes
        self.learnt: list[int] | None = None
        """The numbers of the groups in the order in which the first backward has gathered them again."""
        self.current: CallGathers | None = None
        """The call that runs now."""


class Gathering:
    """The gather of one group in one call."""

    def __init__(self, call: CallGathers, number: int, blocks: Sequence[Tensor]) -> None:
        self.call, self.number, self.group = call, number, call.schedule.groups[number]
        self.trains = torch.is_grad_enabled() and any(block.requires_grad for block in blocks)
        self.ended: Sequence[Tensor] = _EndedGather.apply(self, *blocks) if self.trains else blocks
        if self.trains:
            run_last(next(x.grad_fn for x in self.ended if x.grad_fn is not None))
        self.blocks, self.dtype = [block.detach() for block in blocks], blocks[0].dtype
        self.versions = [version_of(block) for block in blocks]
        self.pending: tuple[Request, Sequence[Tensor]] | None = None
        self.held: Sequence[Tensor] | None = None
        """The whole parameters, from when backward needs them to when it has used them."""
        self.sum: BlockSum | None = None

    def begin(self) -> None:
        if self.pending is None:
            self.pending = self.group.begin(self.blocks)

    def wait(self) -> Sequence[Tensor]:
        self.begin()
        assert self.pending is not None
        (request, wholes), self.pending = self.pending, None
        request.wait()
        return wholes

    def gathered(self) -> Sequence[Tensor]:
        """The whole parameters, for use in forward."""
        wholes = self.wait()
        if not self.trains:
            return wholes
        given, self.ended = self.ended, ()
        return _Gathered.apply(self, wholes, *given)

    def again(self, place: int) -> Tensor:
        """A whole parameter, for use in backward."""
        for block, version in zip(self.blocks, self.versions, strict=True):
            check_version(block, version, "a parameter of a distributed model")
        return (self.held or self.call.again(self))[place]


class CallGathers:
    """The gathers of one call."""

    def __init__(self, schedule: GatherSchedule, blocks: Sequence[Sequence[Tensor]]) -> None:
        self.schedule, self.wire = schedule, current_wire()
        self.replaces = torch.is_grad_enabled() and may_hook()
        self.all = [Gathering(self, number, each) for number, each in enumerate(blocks)]
        self._again: list[int] | None = None
        """The numbers of the groups that this backward has gathered again."""
        self._sums: list[BlockSum] = []

    def gathered(self, number: int) -> Sequence[Tensor]:
        """The parameters of a group, while the next ones are under way."""
        self.all[number].begin()
        self._run_ahead(range(number + 1, len(self.all)))
        return self.all[number].gathered()

    def _run_ahead(self, numbers: Sequence[int]) -> None:
        """Begin the gathers that come next, as far as they may run ahead."""
        ahead = 0
        for number in numbers:
            gathering = self.all[number]
            ahead += gathering.group.nbytes
            if ahead > self.schedule.prefetch_bytes:
                break
            if gathering.held is None:
                gathering.begin()

    def again(self, gathering: Gathering) -> Sequence[Tensor]:
        """The parameters of a group, gathered again in backward."""
        if current_node() is None:
            return gathering.wait()
        if self._again is None:
            self._again = []
            at_end_of_backward(self._end)
        self._again.append(gathering.number)
        gathering.begin()
        learnt, done = self.schedule.learnt, len(self._again)
        if learnt is not None and learnt[:done] == self._again:
            self._run_ahead(learnt[done:])
        for other in self.all:
            if other.held is not None and not other.trains:  # no gradient of it says when it has been used
                other.held = None
        gathering.held = gathering.wait()
        return gathering.held

    def _end(self) -> None:
        """Finish what has run ahead, and drop everything: backward has ended."""
        if self.schedule.learnt is None:
            self.schedule.learnt = self._again
        self._again = None
        for gathering in self.all:
            if gathering.pending is not None:
                gathering.wait()
            gathering.held = None

    def begin_sum(self, gathering: Gathering, gradients: Sequence[Tensor | None]) -> BlockSum:
        """Start to sum gradients, once no more bytes are under way than may be."""
        begun = BlockSum(gathering.group, gradients, gathering.blocks, self.wire)
        self._sums.append(begun)
        while len(self._sums) > 1 and sum(each.nbytes for each in self._sums) > self.schedule.prefetch_bytes:
            self._sums.pop(0).wait()
        return begun

    def finished(self, wanted: BlockSum) -> list[Tensor | None]:
        while wanted in self._sums:  # in the order in which all workers have begun them
            self._sums.pop(0).wait()
        return wanted.gradients()


class _EndedGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gathering: Gathering, *blocks: Tensor) -> tuple[Tensor, ...]:
        ctx.gathering = gathering
        ctx.set_materialize_grads(False)
        made = tuple(block.view_as(block) for block in blocks)
        ctx.mark_non_differentiable(*(y for y, x in zip(made, blocks, strict=True) if not x.requires_grad))
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        gathering: Gathering = ctx.gathering
        begun, gathering.sum = gathering.sum, None
        if begun is None:  # summed at once, to be differentiated again
            return None, *gradients
        sums = gathering.call.finished(begun)
        wanted = ctx.needs_input_grad[1:]
        return None, *(each if needed else None for each, needed in zip(sums, wanted, strict=True))


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gathering: Gathering, wholes: Sequence[Tensor], *blocks: Tensor) -> tuple[Tensor, ...]:
        ctx.gathering = gathering
        prepare(ctx)
        ctx.set_materialize_grads(False)
        made = tuple(wholes)
        ctx.mark_non_differentiable(*(y for y, x in zip(made, blocks, strict=True) if not x.requires_grad))
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        gathering: Gathering = ctx.gathering
        group, workers = gathering.group, gathering.group.workers
        gathering.held = None
        call_id = CallId(key_of(group.name), 0).differentiated()
        meet(ctx, workers.transport, workers.team, group.name, call_id)
        if not torch.is_grad_enabled():
            gathering.sum = gathering.call.begin_sum(gathering, gradients)
            return None, None, *gathering.sum.blocks
        used = torch.tensor([float(g is not None) for g in gradients])
        counts = workers.transport.all_sum(used, workers.team, group.name).tolist()
        made: list[Tensor | None] = []
        for move, gradient, block, shape, count in zip(
            group.moves, gradients, gathering.blocks, group.shapes, counts, strict=True
        ):
            given = block.new_zeros(shape) if gradient is None else gradient
            made.append(apply(given, move.adjoint, call_id, True) if count else None)
        return None, None, *made


class UsesParameters:
    """A step that uses gathered parameters: autograd saves references to their gathers.

    `wholes` are those among the step's inputs, as (position, group, place in the group).
    """

    def __init__(self, run: Any, schedule: GatherSchedule, wholes: Sequence[tuple[int, int, int]]) -> None:
        self.run, self.schedule, self.wholes = run, schedule, wholes

    def __call__(self, *given: Any) -> Any:
        call = self.schedule.current
        if call is None or not call.replaces or not torch.is_grad_enabled():
            return self.run(*given)
        known = {storage_key(given[at]): (call.all[number], place) for at, number, place in self.wholes}
        with torch.autograd.graph.saved_tensors_hooks(_ReplaceWholes(known), _made_again):
            return self.run(*given)


class _ReplaceWholes:
    """The hook that gets what torch would save, and returns what makes it again.

    Torch keeps the hook as long as what it returned, so it must not refer to a whole parameter.
    """

    def __init__(self, known: dict[int, tuple[Gathering, int]]) -> None:
        self.known = known

    def __call__(self, saved: Tensor) -> _Again | _Kept:
        found = self.known.get(storage_key(saved))
        if found is not None and (saved.dtype == found[0].dtype or saved.dtype == found[0].dtype.to_real()):
            return _Again(*found, saved, None)
        base = saved._base if saved._base is not None else saved
        node = base.grad_fn
        if node is not None and node.name() == "ToCopyBackward0":  # a cast, by autocast
            (made_by, place), *_ = node.next_functions
            for gathering, _ in self.known.values():
                if getattr(made_by, "gathering", None) is gathering:
                    return _Again(gathering, place, saved, base.dtype)
        return _Kept(saved)


class _Again:
    """A gathered parameter, or a view of it, or of a cast of it, to be made again."""

    def __init__(self, gathering: Gathering, place: int, saved: Tensor, cast: torch.dtype | None) -> None:
        self.gathering, self.place, self.cast = gathering, place, cast
        self.geometry = saved.size(), saved.stride(), saved.storage_offset()
        self.is_complex = saved.is_complex()
        self.bits = self.is_complex and saved.is_conj(), saved.is_neg()

    def __call__(self) -> Tensor:
        whole = self.gathering.again(self.place)
        whole = whole if self.cast is None else whole.to(self.cast)
        if whole.is_complex() and not self.is_complex:
            whole = torch.view_as_real(whole)
        return with_lazy_bits(whole.as_strided(*self.geometry), *self.bits)


class _Kept:
    """Any other tensor, which must not have been changed meanwhile."""

    def __init__(self, saved: Tensor) -> None:
        self.saved, self.version = saved.detach(), version_of(saved)

    def __call__(self) -> Tensor:
        return check_version(self.saved, self.version, "a tensor of a distributed model")


def _made_again(make: _Again | _Kept) -> Tensor:
    return make()
