"""Fourier transforms, sampling at given places and recurrent layers: dims that belong together are whole, others are cut."""

from __future__ import annotations

from itertools import pairwise

from ...grid import Grid, Layout, Needs
from ..placement import Cut, Placement, Replicated, Want, resized, with_dims
from .call import Call, NoRule, NothingCut, Placed
from .table import rule

ONE = ("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft")
SEVERAL = tuple(f"{name}{end}" for name in ONE for end in ("2", "n"))


@rule(*ONE, *SEVERAL)
def fourier(call: Call) -> Placed:
    """Over whole dims: one movement to other cuts."""
    x, _ = call.first_cut()
    if call.kind in ONE:
        dims: tuple[int, ...] = (call["dim"] % x.dim,)
    elif call["dim"] is not None:
        dims = call.dims("dim", x.dim)
    else:
        sizes = call["s"]
        dims = tuple(range(x.dim)) if sizes is None else tuple(range(x.dim - len(sizes), x.dim))
    layout = call.whole(x, dims)
    target = resized(layout, dims, call.result.shape)
    return Placed(Cut(target), call.unless_empty(call.locally(), target), [layout])


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(call: Call) -> Placed:
    """Each worker samples at its own places, from all of space."""
    (x, places), _ = call.tensors, call.largest_cut()
    if places.layout is not None:
        layout = call.whole(places, [places.dim - 1])
        grid, cuts = layout.grid, layout.cuts
        target = Layout(
            Grid(grid.ranks, (grid.shape[0], 1, *grid.shape[1:-1])), (cuts[0], (0, x.shape[1]), *cuts[1:-1])
        )
        want: Want = layout
    else:
        spread = call.workers.spread(call.result.shape)
        if not isinstance(spread, Cut) or spread.layout.grid.shape[1] > 1:
            raise NothingCut
        target = spread.layout
        grid = target.grid
        lines = [
            tuple(pairwise(target.cuts[0])),
            *(tuple(pairwise(each)) for each in target.cuts[2:]),
            ((0, places.shape[-1]),),
        ]
        axes = (grid.shape[0], *grid.shape[2:], 1)
        want = Needs(Grid(grid.ranks, axes), tuple(lines), (False,) * len(axes))
    batch = tuple(pairwise(target.cuts[0]))
    shape = target.grid.shape
    needed = [batch, ((0, x.shape[1]),), *(((0, n),) * p for n, p in zip(x.shape[2:], shape[2:], strict=True))]
    needs = Needs(target.grid, tuple(needed), (False,) * len(needed))
    return Placed(Cut(target), call.unless_empty(call.locally(), target), [needs, want])


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(call: Call) -> Placed:
    """Over whole sequences: the batch is cut."""
    x = call["input"]
    if "data" in call.given:
        raise NoRule("packed sequences")
    if call["dropout"] and call["train"]:
        raise NoRule("dropout between recurrent layers")
    call.largest_cut()
    if x.dim != 3:
        raise NoRule("a sequence without a batch")
    at = 0 if call["batch_first"] else 1
    placed = call.workers.spread(x.shape, [d for d in range(3) if d != at])
    if not isinstance(placed, Cut):
        raise NothingCut
    cuts = placed.layout.cuts[at]

    def of(shape: tuple[int, ...], dim: int) -> Layout:
        return with_dims(placed.layout, [cuts if d == dim else (0, n) for d, n in enumerate(shape)])

    states = list(call["hx"]) if isinstance(call["hx"], list) else [call["hx"]]
    wants: list[Want] = [placed.layout, *(of(state.shape, 1) for state in states)]
    wants += [Replicated()] * (len(call.tensors) - len(wants))
    outputs: list[Placement] = [Cut(of(call.results[0].shape, at)), *(Cut(of(r.shape, 1)) for r in call.results[1:])]
    run = call.unless_empty(call.locally(), *(each.layout for each in outputs if isinstance(each, Cut)))
    return Placed(outputs, run, wants)
