"""Fourier transforms, sampling at given points, recurrent layers: dims that they couple are whole, others are cut."""

from __future__ import annotations

from dataclasses import replace

from ...grid import Layout
from ..placement import Cut, Placement, Replicated, Want, with_dims
from .call import Call, NoRule, NothingCut, Placed
from .products import product
from .table import rule

ONE = ("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft")
SEVERAL = tuple(f"{name}{end}" for name in ONE for end in ("2", "n"))


@rule(*ONE, *SEVERAL)
def fourier(call: Call) -> Placed:
    """Fourier transforms: the transformed dims are whole, which takes one movement to other blocks."""
    x, _ = call.first_cut()
    if call["dim"] is None and call["s"] is not None:
        dims = tuple(range(x.dim - len(call["s"]), x.dim))
    else:
        dims = call.dims("dim", x.dim)
    return call.along_whole(dims)


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(call: Call) -> Placed:
    """Sampling at given points: each worker has its own points, and the whole image."""
    call.largest_cut()
    space = [f"x{d}" for d in range(call.tensors[0].dim - 2)]
    places = [f"y{d}" for d in range(len(space))]
    placed = product(
        call, [["batch", "channel", *space], ["batch", *places, "at"]], ["batch", "channel", *places], whole=["channel"]
    )
    if not isinstance(placed.outputs, Cut):
        return placed
    return replace(placed, run=call.unless_empty(placed.run, placed.outputs.layout))


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(call: Call) -> Placed:
    """Recurrent layers: sequences are whole, the batch is cut."""
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
