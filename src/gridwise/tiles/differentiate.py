"""Backward of a schedule: stage by stage in the opposite order, tile by tile.

    read boxes ──► compute again ──► pull the cotangent's box back ──► add to the cotangents of what was read

Tiles compute their overlaps several times, but each has the cotangent of its own, disjoint outputs, so sums are exact. The
cotangent of something collected is small, and enters the tiles of the stage that collects it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..operators.on_boxes import Collecting, Local
from ..torch_internals.page_pool import beside_the_pool
from .arrays import InMemory, StoredArray
from .autograd_functions import OwnBackward
from .cone import Stage, Tile, TileStep, boxes_of
from .execute import Execution, in_memory, named, part_of, several
from .graph import GlobalValue, Operation


class DifferentiableExecution(Execution):
    """One call, and its backward."""

    def backward(self, cotangents: Mapping[GlobalValue, Tensor], wanted: Sequence[GlobalValue]) -> list[Tensor | None]:
        """The gradients of the `wanted` inputs and parameters, from the cotangents of outputs."""
        self.cotangents: dict[GlobalValue, StoredArray] = {}
        self._done = 0
        for value, y in cotangents.items():
            if value.by is None:
                self._cotangent(value).add(value.box, y)
            else:
                self.cotangents[value] = _Given(y)
        self._wanted = set(wanted)
        with self.within_limit(self.schedule.stored_in_backward):
            self._pull_back_stages()
        found = [self.cotangents.pop(value) if value in self.cotangents else None for value in wanted]
        return [None if each is None else each.tensor for each in found]  # type: ignore[attr-defined]

    def _pull_back_stages(self) -> None:
        for stage in reversed(self.schedule.stages):
            if stage.own_backward is not None:
                if stage.roots[0] is stage.own_backward.outputs[0]:  # the others come first
                    with named(stage):
                        self._pull_back_function(stage.own_backward)
                continue
            if stage.requires_grad and self._has_cotangent(stage):
                with named(stage):
                    self._pull_back(stage)
            for value in (*stage.roots, *(y for each in stage.collects for y in each.outputs)):
                if value in self.cotangents:
                    self.cotangents.pop(value).release()

    def _has_cotangent(self, stage: Stage) -> bool:
        made_here = (*stage.roots, *(y for each in stage.collects for y in each.outputs))
        return any(value in self.cotangents for value in made_here)

    def _cotangent(self, value: GlobalValue) -> StoredArray:
        """The array to which the cotangents of a value are added."""
        known = self.cotangents.get(value)
        if isinstance(known, _Given):
            new = self.store.new(value, zeros=True)
            new.write(value.box, known.given)
            known = self.cotangents[value] = new
        if known is None:
            if value.source is not None:
                where = self._tensor_of(value)
                with beside_the_pool():
                    zeros = torch.zeros(value.shape, dtype=value.spec.dtype, device=where)
                known = in_memory(zeros, self.store.device)
            else:
                known = self.store.new(value, zeros=True)
            self.cotangents[value] = known
        return known

    def _tensor_of(self, value: GlobalValue) -> torch.device:
        array = self.arrays[value]
        return array.tensor.device if isinstance(array, InMemory) and array.tensor is not None else self.store.device

    def _pull_back(self, stage: Stage) -> None:
        leaves = {
            value: self._read(value, None).detach().requires_grad_()
            for value in stage.reads
            if self._is_wanted(value) and (value.is_fixed or value.nbytes <= self.store.small)
        }
        if stage.whole is not None:
            self._pull_back_whole(stage, leaves)
            return
        of_results = {
            each: [self._whole_cotangent(value) for value in each.outputs]
            for each in stage.collects
            if any(value in self.cotangents for value in each.outputs)
        }
        tiles = stage.tiles(stage.counts_back)
        for tile, given in self._with_fetched(tiles, partial(self._fetched_for, stage, leaves, bool(of_results))):
            self._pull_back_tile(stage, tile, given, leaves, of_results)
            given.clear()
            self._report(stage)

    def _whole_cotangent(self, value: GlobalValue) -> Tensor | None:
        return self.cotangents[value].read(value.box, self.store.device) if value in self.cotangents else None

    def _is_wanted(self, value: GlobalValue) -> bool:
        return value.requires_grad and (value.source is None or value in self._wanted)

    def _fetched_for(
        self, stage: Stage, leaves: Mapping[GlobalValue, Tensor], collects: bool, tile: Tile
    ) -> dict[Any, Tensor]:
        """What a tile reads; its roots, if they are used without being computed again; and cotangents, under `(root,)`."""
        device = self.store.device
        found: dict[Any, Tensor] = {v: self.arrays[v].fetch(box, device) for v, box in tile.reads if v not in leaves}
        if collects and self._last_with_gradients(stage, tile) is not None:
            (root,) = stage.roots
            found[root] = self.arrays[root].fetch(tile.box, device)
        for root in stage.roots:
            if root in self.cotangents:
                found[(root,)] = self.cotangents[root].fetch(tile.box, device)
        return found

    def _pull_back_tile(
        self,
        stage: Stage,
        tile: Tile,
        fetched: dict[Any, Tensor],
        leaves: Mapping[GlobalValue, Tensor],
        of_results: Mapping[Operation, Sequence[Tensor | None]],
    ) -> None:
        held: dict[GlobalValue, Tensor] = {}
        own: dict[GlobalValue, tuple[Any, Tensor, Any]] = {}
        with torch.enable_grad():
            for value, box in tile.reads:
                if value in leaves:
                    held[value] = leaves[value][box.slices]
                    continue
                x = fetched.pop(value)
                if self._is_wanted(value):
                    x = x.detach().requires_grad_()
                    known = self.cotangents.get(value)
                    own[value] = box, x, None if known is None else known.before_adding(box)
                held[value] = x
            last = self._last_with_gradients(stage, tile)
            self._compute(tile, held, upto=len(tile.steps) - (last is not None))
        pairs = self._ends(stage, tile, held, fetched, of_results, last is None)
        fetched.clear()
        if last is not None:
            pairs = self._before_last(stage, tile, last, held, pairs)
        ends, of_ends = [x for x, _ in pairs], [g for _, g in pairs]
        del pairs
        held.clear()
        whole = list(leaves)
        starts = [*(x for _, x, _ in own.values()), *leaves.values()]
        if not ends or not starts:
            return
        gradients = torch.autograd.grad(ends, starts, of_ends, allow_unused=True)
        ends.clear()
        for (value, (box, _, before)), g in zip(own.items(), gradients, strict=False):
            if g is not None:
                self._cotangent(value).add(box, g, before)
        for value, g in zip(whole, gradients[len(own) :], strict=True):
            if g is not None:
                self._cotangent(value).add(value.box, g)

    def _last_with_gradients(self, stage: Stage, tile: Tile) -> TileStep | None:
        """The step that makes the stored value, if its gradients can be had without its output."""
        if len(stage.roots) != 1 or self.store.device.type == "meta":
            return None
        step = tile.steps[-1]
        operator = step.operation.operator
        is_last = step.operation is stage.roots[0].by and isinstance(operator, Local)
        return step if is_last and operator.gradients is not None and not step.operation.autocast else None  # type: ignore[union-attr]

    def _ends(
        self,
        stage: Stage,
        tile: Tile,
        held: dict[GlobalValue, Tensor],
        fetched: dict[Any, Tensor],
        of_results: Mapping[Operation, Sequence[Tensor | None]],
        is_computed: bool,
    ) -> list[tuple[Tensor, Tensor]]:
        """What backward starts from in a tile, each with its cotangent; a root that is not computed again is read."""
        found: list[tuple[Tensor, Tensor]] = []
        if not is_computed and of_results:
            (root,) = stage.roots
            held[root] = fetched.pop(root)
        for root in stage.roots:
            if root in self.cotangents and (not is_computed or held[root].requires_grad):
                found.append((held.get(root, _NOTHING), fetched.pop((root,))))
        for operation, arguments in tile.collected:
            if operation not in of_results:
                continue
            with torch.enable_grad():
                given = [part_of(each, held) for each in arguments]
            assert isinstance(operation.operator, Collecting)
            with torch.no_grad(), operation.casting():
                plain = [x.detach() for x in given]
                gradients = operation.operator.gradients(self.states[operation], tile.box, plain, of_results[operation])
            own = not is_computed
            found += [
                (x, g) for x, g in zip(given, gradients, strict=True) if g is not None and (own or x.requires_grad)
            ]
        return found

    def _before_last(
        self,
        stage: Stage,
        tile: Tile,
        last: TileStep,
        held: dict[GlobalValue, Tensor],
        pairs: list[tuple[Tensor, Tensor]],
    ) -> list[tuple[Tensor, Tensor]]:
        """The same one step earlier: the inputs of the last step, with their gradients."""
        if not pairs:
            return []
        total = pairs[0][1]
        for _, g in pairs[1:]:
            total = total + g
        pairs.clear()  # the parts are not needed while the step is pulled back
        with torch.enable_grad():
            given = [part_of(each, held) for each in last.arguments]
        operator = last.operation.operator
        assert isinstance(operator, Local)
        assert operator.gradients is not None
        with torch.no_grad():
            found = operator.gradients(
                last.box, [x.detach() for x in given], total.to(given[0].dtype), [x.requires_grad for x in given]
            )
        if found is None:
            with torch.enable_grad():
                return [(self._computed(last.operation, last.box, given), total)]
        return [(x, g) for x, g in zip(given, found, strict=True) if x.requires_grad and g is not None]

    def _pull_back_function(self, own: OwnBackward) -> None:
        """Run the backward of an autograd Function by tiles, and add what it returns to the cotangents of its inputs."""
        if any(value in self.cotangents for value in own.outputs) and any(map(self._is_wanted, own.inputs)):
            given = [*(self.arrays[value] for value in own.saved), *(self._or_zeros(value) for value in own.outputs)]
            arrays = {value: given[place] for place, value in own.graph.inputs.items()}
            for value in own.graph.fixed:
                assert value.source is not None
                arrays[value] = InMemory(own.graph.constants[value.source.name])
            run = Execution(self.schedule.of_functions[own], self.store, arrays, self.stream, False)
            run.forward()
            for value, gradient in zip(own.inputs, own.graph.outputs, strict=True):
                if self._is_wanted(value):
                    pieces = [1] * len(value.shape)
                    if pieces:
                        pieces[max(range(len(pieces)), key=value.shape.__getitem__)] = -(-value.nbytes // PIECE)
                    for box in boxes_of(value.shape, pieces):
                        part = run.arrays[gradient].read(box, self.store.device)
                        self._cotangent(value).add(box, part.to(value.spec.dtype))
        for value in own.outputs:
            if value in self.cotangents:
                self.cotangents.pop(value).release()

    def _or_zeros(self, value: GlobalValue) -> StoredArray:
        """The cotangent of a value, or zeros that take no memory."""
        zero = torch.zeros((), dtype=value.spec.dtype, device=self.store.device)
        return self.cotangents.get(value) or InMemory(zero.expand(value.shape))

    def _pull_back_whole(self, stage: Stage, leaves: Mapping[GlobalValue, Tensor]) -> None:
        operation = stage.whole
        assert operation is not None
        leaves = dict(leaves)
        given = []
        for value in operation.inputs:
            if value not in leaves and self._is_wanted(value):
                leaves[value] = self._read(value, None).detach().requires_grad_()
            given.append(leaves[value] if value in leaves else self._read(value, None))
        with torch.enable_grad():
            results = several(self._computed(operation, None, given))
        pairs = [
            (y, self.cotangents[root].read(root.box, self.store.device))
            for root, y in zip(stage.roots, results, strict=True)
            if root in self.cotangents and y.requires_grad
        ]
        if pairs and leaves:
            ends, of_ends = [y for y, _ in pairs], [g for _, g in pairs]
            gradients = torch.autograd.grad(ends, list(leaves.values()), of_ends, allow_unused=True)
            for value, g in zip(leaves, gradients, strict=True):
                if g is not None:
                    self._cotangent(value).add(value.box, g)
        self._report(stage)


PIECE = 1 << 20
"""How many bytes of a gradient are added at a time."""
_NOTHING = torch.empty(0, device="cpu")


class _Given(InMemory):
    """A cotangent that the user's code has given: it is read, and not added to."""

    def __init__(self, given: Tensor) -> None:
        super().__init__(given)
        self.given = given
