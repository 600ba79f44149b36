"""Random configurations of layers: arguments, sizes, grids, uneven and empty blocks. Seeded and endless."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

from equality import Case

KINDS = (
    "Conv",
    "Conv",
    "Conv",
    "WorkConv",
    "ConvTranspose",
    "MaxPool",
    "AvgPool",
    "AdaptiveAvgPool",
    "AdaptiveMaxPool",
    "Pad",
    "Norm",
    "Upsample",
    "Upsample",
    "PReLU",
)
WITHOUT_UNBATCHED = ("BatchNorm", "GroupNorm", "Upsample", "PReLU")


def random_case(seed: int, workers: int) -> Case:
    """A configuration for at most so many workers; small, so that thousands can be run."""
    rng = random.Random(f"{seed} {workers}")
    kind, dims = rng.choice(KINDS), rng.choice((1, 1, 2, 2, 2, 3))
    groups = rng.choice((1, 1, 1, 2, 3)) if "Conv" in kind else 1
    channels = groups * rng.randint(1, 3)
    space = tuple(rng.randint(1, 12 if dims < 3 else 6) for _ in range(dims))
    shape: tuple[int, ...] = (rng.choice((1, 2, 3)), channels, *space)
    P_x = _grid(rng, dims + 2, workers)
    P_w = None
    if kind == "WorkConv":
        kind, P_w = "Conv", _grid(rng, dims + 2, workers)
    layer, args, kwargs, call = _arguments(rng, kind, dims, channels, groups, space)
    if rng.random() < 0.15 and P_w is None and P_x[0] == 1 and not layer.startswith(WITHOUT_UNBATCHED):
        shape = shape[1:]
        P_x = rng.choice((P_x, P_x[1:]))
    extents = None
    if rng.random() < 0.4:
        extents = tuple(
            _uneven(rng, n, p) if rng.random() < 0.6 else None
            for n, p in zip(shape, P_x[len(P_x) - len(shape) :], strict=True)
        )
        if kind in ("Norm", "PReLU"):  # parameters are in even blocks, and refused by others
            extents = (*extents[: -dims - 1], None, *extents[-dims:])
    channels_last = len(shape) == 4 and rng.random() < 0.1
    return Case(layer, P_x, shape, args, kwargs, P_w, extents, channels_last, call)


def _grid(rng: random.Random, axes: int, workers: int) -> tuple[int, ...]:
    shape, left = [1] * axes, workers
    for _ in range(rng.randint(1, 3)):
        axis, extent = rng.choice((*range(axes), *range(2, axes), *range(2, axes))), rng.randint(min(2, left), left)
        if shape[axis] == 1:
            shape[axis], left = extent, left // extent
    return tuple(shape)


def _uneven(rng: random.Random, extent: int, blocks: int) -> tuple[int, ...]:
    ends = [0, *sorted(rng.randint(0, extent) for _ in range(blocks - 1)), extent]
    return tuple(b - a for a, b in pairwise(ends))


def _sizes(rng: random.Random, dims: int, low: int, high: int) -> int | tuple[int, ...]:
    sizes = tuple(rng.randint(low, high) for _ in range(dims))
    return rng.choice((sizes[0], sizes))


def _arguments(
    rng: random.Random, kind: str, dims: int, channels: int, groups: int, space: tuple[int, ...]
) -> tuple[str, tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
    if kind == "Norm":
        return *_norm(rng, dims, channels), ()
    if kind == "Upsample":
        return "Upsample", (), _upsampling(rng, dims, space), ()
    if kind == "PReLU":
        return "PReLU", (rng.choice((1, channels)),), {}, ()
    layer, args, options = _windowed(rng, kind, dims, channels, groups)
    call: tuple[Any, ...] = ()
    if kind == "ConvTranspose" and rng.random() < 0.3:
        call = (tuple(n * _first(options["stride"]) + rng.randint(-1, 4) for n in space),)
    return layer, args, options, call


def _norm(rng: random.Random, dims: int, channels: int) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    name = rng.choice(("InstanceNorm", "InstanceNorm", "BatchNorm", "GroupNorm"))
    options: dict[str, Any] = {"affine": rng.random() < 0.6}
    if name == "GroupNorm":
        return name, (rng.choice([g for g in range(1, channels + 1) if channels % g == 0]), channels), options
    options |= {"track_running_stats": rng.random() < 0.5, "momentum": rng.choice((0.1, 0.5))}
    return f"{name}{dims}d", (channels,), options


def _upsampling(rng: random.Random, dims: int, space: tuple[int, ...]) -> dict[str, Any]:
    smooth = {1: ("linear",), 2: ("bilinear", "bicubic", "bicubic"), 3: ("trilinear",)}[dims]
    mode = rng.choice(("nearest", "nearest-exact", *smooth))
    options: dict[str, Any] = {"mode": mode}
    if mode in smooth:
        options["align_corners"] = rng.choice((None, False, True))
    if rng.random() < 0.5:
        return options | {"size": _sizes(rng, dims, 1, 15)}
    factors = [rng.choice((0.3, 0.5, 2 / 3, 1.0, 1.4, 2.0, 2.6, 4.0)) for _ in space]
    # torch's gradient of these is not that of its output: see `DistributedUpsample`
    copied = (1, 2) if mode.startswith("nearest") else (1,) if mode == "bicubic" else ()
    factors = [
        float(round(f) or 1) if int(n * f) in [n * m for m in copied] else f
        for f, n in zip(factors, space, strict=True)
    ]
    return options | {"scale_factor": tuple(factors), "recompute_scale_factor": rng.choice((None, True))}


def _first(sizes: int | tuple[int, ...]) -> int:
    return sizes if isinstance(sizes, int) else sizes[0]


def _windowed(
    rng: random.Random, kind: str, dims: int, channels: int, groups: int
) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    kernel, stride = _sizes(rng, dims, 1, 5), _sizes(rng, dims, 1, 3)
    if kind == "Conv":
        mode = rng.choice(("zeros", "zeros", "reflect", "replicate", "circular"))
        padding: Any = rng.choice((_sizes(rng, dims, 0, 4), _sizes(rng, dims, 0, 2), "same", "valid"))
        stride = 1 if padding == "same" and rng.random() < 0.9 else stride
        options = {"stride": stride, "padding": padding, "dilation": _sizes(rng, dims, 1, 2), "padding_mode": mode}
        options |= {"groups": groups, "bias": rng.random() < 0.8}
        return f"Conv{dims}d", (channels, groups * rng.randint(1, 4), kernel), options
    if kind == "ConvTranspose":
        options = {"stride": stride, "padding": _sizes(rng, dims, 0, 3), "output_padding": _sizes(rng, dims, 0, 1)}
        options |= {"groups": groups, "bias": rng.random() < 0.8, "dilation": _sizes(rng, dims, 1, 2)}
        return f"ConvTranspose{dims}d", (channels, groups * rng.randint(1, 4), kernel), options
    if kind == "MaxPool":
        options = {"padding": _sizes(rng, dims, 0, 2), "dilation": _sizes(rng, dims, 1, 2)}
        options |= {"return_indices": rng.random() < 0.4, "ceil_mode": rng.random() < 0.4}
        return f"MaxPool{dims}d", (kernel, rng.choice((None, stride))), options
    if kind == "AvgPool":
        options = {"padding": _sizes(rng, dims, 0, 2), "ceil_mode": rng.random() < 0.4}
        options |= {"count_include_pad": rng.random() < 0.5}
        if dims > 1 and rng.random() < 0.3:
            options["divisor_override"] = rng.randint(1, 5)
        return f"AvgPool{dims}d", (kernel, rng.choice((None, stride))), options
    if kind.startswith("Adaptive"):
        size: Any = tuple(rng.choice((1, 2, 3, 5, 7, None)) for _ in range(dims))
        size = size[0] if size[0] and (dims == 1 or rng.random() < 0.3) else (size if dims > 1 else 4)
        return (
            f"{kind}{dims}d",
            (size,),
            {"return_indices": True} if kind.endswith("MaxPool") and rng.random() < 0.5 else {},
        )
    name = rng.choice(("ZeroPad", "ConstantPad", "ReflectionPad", "ReplicationPad", "CircularPad"))
    padding = rng.choice((rng.randint(0, 3), tuple(rng.randint(-1, 4) for _ in range(2 * dims))))
    return f"{name}{dims}d", (padding, 1.5) if name == "ConstantPad" else (padding,), {}


def larger(case):
    """A random case with three times as many rows, in balanced blocks: most are wider than their halos."""
    dims = int(case.layer[-2])
    space = tuple(3 * n for n in case.shape[-dims:])
    return replace(case, shape=(*case.shape[:-dims], *space), extents=None)
