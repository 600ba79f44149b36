"""Views: the same elements under other dims. Blocks stay where they are if the new shape can express them.

Otherwise a dim that is split or merged is first cut along its outer factor (`grid.reshape`): windows of an attention,
patches, tokens of an image.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ...grid import Layout, balanced_cuts
from ...grid.cuts import scaled
from ...grid.reshape import reshaped
from ...operators.views import order_of
from ..placement import Cut, Replicated, permuted, resized, with_dims, without_dims
from .call import Call, NoRule, NothingCut, Placed
from .table import rule


@rule(
    "view", "reshape", "flatten", "unflatten", "_unsafe_view", "view_as", "reshape_as", "ravel", "unsqueeze", "squeeze",
    "_reshape_alias",
)  # fmt: skip
def reshape(call: Call) -> Placed:
    """Any change of shape that keeps the order of the elements."""
    x, shape = call.tensors[0], call.result.shape
    if call.given.get("dtype"):
        raise NoRule("a view of another dtype")
    change = Tensor.view if call.keeps_alias else Tensor.reshape
    everywhere = Placed(Replicated(), lambda x, *_: change(x, shape), call.first_alone(Replicated()))
    if x.layout is None:
        return everywhere
    if x.volume <= 1:
        return replace(everywhere, combines=True)
    found = reshaped(x.layout, shape, call.workers.ranks)
    if found is None:
        return replace(everywhere, gathers=f"a view of shape {shape} has no blocks of {x.shape}")
    before, after = found
    block = call.block(after).shape
    return Placed(Cut(after), lambda x, *_: change(x, block), call.first_alone(before))


@rule("permute", "transpose", "swapaxes", "swapdims", "t", "numpy_T", "movedim", "moveaxis", "mT")
def permute(call: Call) -> Placed:
    """The dims in another order; the axes of the grid are permuted alike."""
    x, layout = call.first_cut()
    order = order_of(call, x.dim)
    return Placed(Cut(permuted(layout, order)), lambda x: x.permute(order))


@rule("expand", "expand_as", "broadcast_to")
def expand(call: Call) -> Placed:
    """Dims of extent 1 repeated without a copy; each worker repeats what it has."""
    x, shape = call.tensors[0], call.result.shape
    lacking = len(shape) - x.dim
    grown = [d for d, (a, b) in enumerate(zip(x.shape, shape[lacking:], strict=True)) if a != b]
    try:
        layout = call.whole(x, grown)
    except NothingCut:
        return Placed(Replicated(), lambda x, *_: x.expand(shape), call.first_alone(Replicated()))
    cuts = [*((0, n) for n in shape[:lacking]), *resized(layout, grown, shape[lacking:]).cuts]
    target = with_dims(layout, cuts)
    block = call.block(target).shape
    return Placed(Cut(target), lambda x, *_: x.expand(block), call.first_alone(layout))


@rule("view_as_real")
def view_as_real(call: Call) -> Placed:
    """Complex numbers as pairs, in a new last dim."""
    _, layout = call.first_cut()
    return Placed(Cut(with_dims(layout, (*layout.cuts, (0, 2)))), call.locally())


@rule("view_as_complex")
def view_as_complex(call: Call) -> Placed:
    """Pairs in the last dim as complex numbers."""
    x = call.tensors[0]
    layout = call.whole(x, [x.dim - 1])
    return Placed(Cut(without_dims(layout, [x.dim - 1])), call.locally(), [layout])


@rule("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle")
def pixels(call: Call) -> Placed:
    """Channels to pixels, or back: channels are whole, and rows and columns are cut at multiples of the factor."""
    x, _ = call.first_cut()
    if "channel_shuffle" in call.kind:
        return call.along_whole([1])
    lead, up = x.dim - 3, call.kind == "pixel_shuffle"
    r = call["upscale_factor" if up else "downscale_factor"]
    layout = call.whole(x, [lead])
    space = layout.cuts[-2:]
    if not up:
        space = tuple(scaled(balanced_cuts(cuts[-1] // r, len(cuts) - 1), r) for cuts in space)
        layout = Layout(layout.grid, (*layout.cuts[:-2], *space))
    made = [tuple(cut * r if up else cut // r for cut in cuts) for cuts in space]
    target = with_dims(layout, (*layout.cuts[:lead], (0, call.result.shape[lead]), *made))
    return Placed(Cut(target), call.unless_empty(call.locally(), target), [layout])  # torch: no gradient if empty
