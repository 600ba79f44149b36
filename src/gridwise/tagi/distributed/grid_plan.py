"""How a network runs on a grid: which rows each windowed layer fetches, and where whole samples are needed.

    images                                      samples
    (batch, 1, height, width) grid      ->      all its workers along the batch
    convolution, pooling       halos            Linear, LayerNorm, Softmax, ...     as on one worker
    BatchNorm2d                sums
    activations, unit by unit  nothing

At the first layer that needs whole samples they are gathered: from there on the batch is spread over all workers, each
with an equal share. Everything follows from the layout of the input, which all workers know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ...comm.transports.base import Team, Transport
from ...errors import PartitionError
from ...grid import Cuts, Grid, Interval, Layout, Needs, hull_then_pad, transposed_need, window_need
from ..nn.activation import LeakyReLU, MixtureReLU, MixtureSigmoid, MixtureTanh, ReLU, Sigmoid, Softplus, Tanh
from ..nn.base_layer import BaseLayer
from ..nn.batch_norm import BatchNorm2d
from ..nn.conv2d import Conv2d
from ..nn.layer_block import LayerBlock, ResNetBlock
from ..nn.sequential import Sequential
from ..nn.windowed import WindowedBaseLayer
from .carrier import Carrier, Regrid

UNIT_BY_UNIT = (ReLU, LeakyReLU, MixtureReLU, Sigmoid, MixtureSigmoid, Tanh, MixtureTanh, Softplus)


def works_on_blocks(layer: BaseLayer) -> bool:
    """Whether a layer can work on blocks of images; otherwise it needs whole samples."""
    if isinstance(layer, LayerBlock | ResNetBlock):
        return all(map(works_on_blocks, layer.children_layers()))
    return isinstance(layer, (WindowedBaseLayer, BatchNorm2d, *UNIT_BY_UNIT))


def samples_grid(grid: Grid) -> Grid:
    """The grid with all workers of `grid` along the batch axis."""
    return Grid(grid.ranks, (grid.size, *(1,) * (grid.dim - 1)))


@dataclass
class GridPlan:
    """The layers of `net` in order, with the movements between them, for an input in blocks `source`."""

    net: Sequential
    transport: Transport
    team: Team
    source: Layout
    steps: list[BaseLayer] = field(default_factory=list)
    halos: dict[WindowedBaseLayer, Carrier] = field(default_factory=dict)

    def __post_init__(self) -> None:
        layout: Layout | None = self.source
        first = self.net.layers[0]
        is_block = works_on_blocks(first) and not isinstance(first, WindowedBaseLayer)
        if is_block:  # both branches of a ResNetBlock need balanced blocks
            layout = self._regrid(self.source, self.source.grid)
        for layer in self.net.layers:
            if layout is not None and works_on_blocks(layer):
                layout = self._place(layer, layout)
            elif layout is not None:
                self._regrid(layout, samples_grid(layout.grid))
                layout = None
            self.steps.append(layer)

    def _regrid(self, source: Layout, grid: Grid) -> Layout:
        target = Layout.balanced(grid, source.global_shape)
        if target != source:
            needs = Needs.of_layout(target)
            self.steps.append(Regrid(Carrier(self.transport, self.team, "the gathering of samples", source, needs)))
        return target

    def _place(self, layer: BaseLayer, layout: Layout) -> Layout:
        """The layout of a layer's outputs, for an input in blocks `layout`; plans the halos on the way."""
        if isinstance(layer, LayerBlock):
            for child in layer.layers:
                layout = self._place(child, layout)
            return layout
        if isinstance(layer, ResNetBlock):
            main = self._place(layer.main_block, layout)
            side = layout if layer.shortcut is None else self._place(layer.shortcut, layout)
            if main != side:
                raise PartitionError(
                    f"ResNetBlock: main block gives shape {main.global_shape}, the shortcut {side.global_shape}.\n"
                    "  fix: a shortcut with the stride and the channels of the main block."
                )
            return main
        if isinstance(layer, BatchNorm2d):
            _check_channels(layer, layout, layer.num_features)
        return self._place_windows(layer, layout) if isinstance(layer, WindowedBaseLayer) else layout

    def _place_windows(self, layer: WindowedBaseLayer, source: Layout) -> Layout:
        batch, channels, height, width = source.global_shape
        if isinstance(layer, Conv2d):
            _check_channels(layer, source, layer.in_channels)
            _check_declared(layer, (height, width))
            channels = layer.out_channels
        size = layer.output_hw((height, width))
        if min(size) < 1:
            raise PartitionError(f"{layer.get_layer_info()}: images of {height} x {width} leave no output.")
        target = Layout.balanced(source.grid, (batch, channels, *size))
        space = [_rows_along(d, layer, target.cuts[2 + d], source.global_shape[2 + d]) for d in range(2)]
        hulls = (tuple(rows.hull for rows in line) for line in space)
        intervals = tuple(pairwise(target.cuts[0])), ((0, source.global_shape[1]),), *hulls
        needs = Needs(source.grid, intervals, (False,) * 4)
        _, _, row, column = source.grid.index_of(self.transport.rank)
        mine = space[0][row], space[1][column]
        margins = ((0, 0), (0, 0), *(rows.margin for rows in mine))
        halo = Carrier(self.transport, self.team, layer.get_layer_info(), source, needs, margins, layer.padding_value)
        halo.drops = (mine[0].drop, mine[1].drop) if layer.transposed else None
        self.halos[layer] = halo
        return target


class _Rows(NamedTuple):
    """What one worker fetches along one dim of space: a `hull` of real rows, with `margin` rows of padding around it.

    `drop` is how many excess rows a transposed kernel makes of them, before and after the worker's outputs.
    """

    hull: Interval
    margin: Interval = (0, 0)
    drop: Interval = (0, 0)


def _rows_along(d: int, layer: WindowedBaseLayer, cuts: Cuts, extent: int) -> list[_Rows]:
    """What each worker along dim `d` of space fetches, for an output cut at `cuts` and an input of `extent` rows."""
    kernel, stride, dilation = layer.kernel_size[d], layer.stride[d], layer.dilation[d]
    before = layer.padding[d] if layer.padding_type == 1 else 0
    out = []
    for first, last in pairwise(cuts):
        window = (first, last), kernel, stride, before, dilation
        if not layer.transposed:
            padding = hull_then_pad(window_need(*window), extent, "constant")
            out.append(_Rows(padding.hull, (padding.before, padding.after)))
            continue
        start, stop = hull = transposed_need(*window, extent)
        skipped = first + before - stride * start
        made = stride * (stop - start - 1) + dilation * (kernel - 1) + 1
        out.append(_Rows(hull, drop=(skipped, made - skipped - (last - first)) if start < stop else (0, first - last)))
    return out


def _check_channels(layer: BaseLayer, layout: Layout, wanted: int) -> None:
    if layout.global_shape[1] != wanted:
        raise PartitionError(
            f"{layer.get_layer_info()}: the input of global shape {layout.global_shape} has {layout.global_shape[1]} "
            f"channels, the layer takes {wanted}."
        )


def _check_declared(layer: Conv2d, size: tuple[int, int]) -> None:
    if any(declared not in (0, extent) for declared, extent in zip(layer.declared_hw, size, strict=True)):
        height, width = layer.declared_hw
        raise PartitionError(
            f"{layer.get_layer_info()}: declared with `in_height` (={height}) and `in_width` (={width}), the blocks of all "
            f"workers together are images of height {size[0]} and width {size[1]}.\n"
            "  fix: pass each worker its block, x[gridwise.local_slice(P_x, x.shape)]; or declare the sizes of the whole image."
        )
