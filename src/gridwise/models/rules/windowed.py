"""Windowed operators: convolutions, pooling, interpolation. Each is run by a layer of `nn` that is given the layout.

Normally a layer agrees with the other workers on the blocks of its input. Here they are known, so it only plans
(`_plan`) and computes (`_local`), with everything that the layers offer: halos, padding modes, low memory use, and
computation that overlaps with communication. Weights are whole on every worker; each uses the part that the layer would
hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ... import nn
from ...grid import Grid, Layout
from ...nn.engine.agreement import Structure
from ...nn.parameters.blocks import Spread
from ...nn.windows.windowed_layer import WindowedLayer
from ...operators.windows.one_dim import each
from ...partition import CartesianPartition
from ..placement import Cut, GlobalTensor
from .call import Call, LocalFunction, NoRule, Placed
from .on_boxes import source_layout
from .table import rule

Make = Callable[[CartesianPartition], Any]


class GivenWeights:
    """Mixin for a layer whose weights are given at each call: it holds none, and makes no agreements."""

    _spreads: Mapping[str, Spread]
    _given: tuple[Tensor, Tensor | None]

    def _build(self, make: Any, spreads: Any, device: Any = None, problem: str | None = None) -> Any:
        template = make("meta")
        self._spreads = spreads(template)
        return template

    def _weight_and_bias(self) -> tuple[Tensor, Tensor | None]:
        return self._given

    def _raw_weight_and_bias(self) -> tuple[Tensor, Tensor | None, list[None]]:
        return *self._given, [None, None]

    def part_of(self, name: str, rank: int) -> Callable[[Tensor], Tensor]:
        """A function from a whole weight to the part that the layer would hold."""
        spread = self._spreads[name]
        if spread.layout.grid.size == 1:
            return lambda weight: weight
        return lambda weight: spread.cut(weight, rank)


def _given(layer: type) -> Any:
    return type(f"Given{layer.__name__.removeprefix('Distributed')}", (GivenWeights, layer), {})


CONV = {d: _given(getattr(nn, f"DistributedConv{d}d")) for d in (1, 2, 3)}
CONV_TRANSPOSE = {d: _given(getattr(nn, f"DistributedConvTranspose{d}d")) for d in (1, 2, 3)}


def by_layer(
    call: Call, make: Make, space: int, moves: bool = True, weights: Sequence[GlobalTensor | None] = ()
) -> Placed:
    """The operator, run by the layer that `make` makes on a partition, for an input with `space` spatial dims."""
    x = call.tensors[0]
    if x.dim not in (space + 1, space + 2):
        raise NoRule(f"an input of {x.dim} dims")
    layout = source_layout(call, x, moves)
    if weights and space < 3 and _is_cut_by_samples(layout, x, space):
        target = Layout(layout.grid, (layout.cuts[0], *((0, n) for n in call.result.shape[1:])))
        return Placed(Cut(target), call.locally(), call.others_whole(layout))
    unbatched = x.dim == space + 1
    batched = Layout(Grid(layout.grid.ranks, (1, *layout.grid.shape)), ((0, 1), *layout.cuts)) if unbatched else layout
    shape = (1, *call.result.shape) if unbatched else call.result.shape
    layer: WindowedLayer = make(CartesianPartition(call.workers.transport, batched.grid))
    block = batched.block(call.workers.rank)
    layer._agreed = Structure(block.shape, x.dtype, True, x.device, True)
    layer._title = call.name
    layer._plan(batched, shape)
    run = _run_of(layer, weights, call.workers.rank)
    target = Layout.balanced(batched.grid, shape)
    if unbatched:
        inner, target = run, Layout(layout.grid, target.cuts[1:])
        run = lambda x, *rest: _squeezed(inner(x.unsqueeze(0), *rest))  # noqa: E731
    return Placed(Cut(target), run, call.others_whole(layout))


def _is_cut_by_samples(layout: Layout, x: GlobalTensor, space: int) -> bool:
    """Whether only the batch is cut, evenly and with samples on every worker: a convolution is then torch's own.

    Not used for volumes, for which the layer is faster, since it pads depth by hand.
    """
    if x.dim != space + 2 or max(layout.grid.shape[1:]) > 1 or x.shape[0] < layout.grid.size:
        return False
    return layout == Layout.balanced(layout.grid, x.shape)


def _squeezed(y: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    return tuple(part.squeeze(0) for part in y) if isinstance(y, tuple) else y.squeeze(0)


def _run_of(layer: Any, weights: Sequence[GlobalTensor | None], rank: int) -> LocalFunction:
    agreed = layer._agreed
    quiet = agreed._replace(requires_grad=False)

    def run(x: Tensor, *given: Tensor) -> Any:
        layer._agreed = agreed if x.requires_grad and torch.is_grad_enabled() else quiet
        return layer._local(x)

    if not weights:
        return run
    parts = [layer.part_of(name, rank) for name in ("weight", "bias")]

    def with_weights(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        layer._given = parts[0](weight), None if bias is None else parts[1](bias)
        try:
            return run(x)
        finally:
            del layer._given

    return with_weights


@rule(*(f"conv{d}d" for d in (1, 2, 3)), "convolution", "_convolution")
def convolution(call: Call) -> Placed:
    """A convolution with numeric or named padding; also `aten::convolution`, torch's one operator for all kinds."""
    if call.given.get("transposed"):
        return transposed_convolution(call)
    made, per_group, *_ = call["weight"].shape
    return _convolved(call, CONV, (per_group * call["groups"], made), "stride", "padding", "dilation")


@rule(*(f"conv_transpose{d}d" for d in (1, 2, 3)))
def transposed_convolution(call: Call) -> Placed:
    given, per_group, *_ = call["weight"].shape
    sizes = "stride", "padding", "output_padding", "dilation"
    return _convolved(call, CONV_TRANSPOSE, (given, per_group * call["groups"]), *sizes)


def _convolved(call: Call, layers: Mapping[int, Any], channels: tuple[int, int], *sizes: str) -> Placed:
    """A convolution by the layer with this call's `sizes`; `channels` are those of the input and of the output."""
    weight, bias = call["weight"], call["bias"]
    dims, kernel = weight.dim - 2, weight.shape[2:]
    given = {name: call[name] if isinstance(call[name], str) else each(call[name], dims) for name in sizes}
    given |= {"groups": call["groups"], "bias": bias is not None}
    if (
        weight.dtype.is_floating_point or weight.dtype.is_complex
    ):  # torch makes no other parameters, and needs none here
        given["dtype"] = weight.dtype
    return by_layer(call, lambda P: layers[dims](P, *channels, kernel, **given), dims, weights=(weight, bias))
