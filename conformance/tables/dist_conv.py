"""What DistConv's tests call: the parameters of tests/ of LBANN/DistConv, read in November 2026.

Files: test_basic, test_strides (675173f3), test_periodic (01fcaf50), test_splitting (01a64727), test_convtranspose (70f1cec4),
test_doublebackprop (026d8e43), test_ddp_with_distconv (675173f3), test_channels_last.
"""

from __future__ import annotations

from .table import Cut, Shape, Table

SOURCE = "DistConv, main branch of November 2026"
CHANNELS = {"in_channels": 4, "out_channels": 8}


def _cube(dims: int, size: int = 64, batch: int = 1) -> tuple[tuple[Shape, ...], ...]:
    return (((batch, 4) + (size,) * dims,),)


def _each(dims: int, workers: int) -> tuple[Cut, ...]:
    return tuple(((2 + dim, workers),) for dim in range(dims))


def _pairs(dims: int) -> tuple[Cut, ...]:
    """In both orders of a mesh, which are one cut here."""
    return tuple(((2 + i, 2), (2 + j, 2)) for i in range(dims) for j in range(i + 1, dims))


def _same(kernel: int) -> dict[str, int]:
    return {"kernel_size": kernel, "padding": kernel // 2}


BASIC = tuple(
    Table(f"Conv{dims}d", _cube(dims), _each(dims, 4), {**CHANNELS, **_same(kernel)})
    for dims in (1, 2, 3)
    for kernel in (1, 3, 5)
)
STRIDES = tuple(
    Table(
        f"Conv{dims}d",
        _cube(dims),
        (((2, 4),),),
        {**CHANNELS, "kernel_size": kernel, "padding": 1 if kernel == 3 else 0},
        {"stride": (2, 4)},
    )
    for dims in (1, 2, 3)
    for kernel in (1, 2, 3)
)
PERIODIC = tuple(
    Table(
        f"Conv{dims}d",
        _cube(dims),
        (*_each(dims, 2), *_each(dims, 4)),
        {**CHANNELS, **_same(kernel), "padding_mode": "circular", "bias": False},
        {"stride": (1, 2)},
    )
    for dims in (1, 2, 3)
    for kernel in (1, 3, 5)
)
SPLITTING = tuple(
    Table(
        f"Conv{dims}d",
        _cube(dims),
        _pairs(dims),
        {**CHANNELS, **_same(kernel)},
        {"stride": (1, 2, 4), "padding_mode": ("zeros", "circular")},
    )
    for dims in (2, 3)
    for kernel in (1, 3, 5)
)
_EIGHT: tuple[Cut, ...] = (((2, 2), (3, 2), (4, 2)),)
THREE_WAYS = tuple(
    Table("Conv3d", _cube(3), _EIGHT, {**CHANNELS, **_same(kernel)}, {"stride": (1, 2, 4)}) for kernel in (1, 3, 5)
)


def _uneven(kernel: Shape, cuts: tuple[Cut, ...], size: int = 64, mode: str = "zeros", stride: int = 1) -> Table:
    """A kernel of several sizes, with "same" padding."""
    settings = {"kernel_size": kernel, "padding": tuple(k // 2 for k in kernel), "stride": stride, "padding_mode": mode}
    return Table(f"Conv{len(kernel)}d", _cube(len(kernel), size), cuts, {**CHANNELS, **settings})


KERNELS = (
    *(_uneven(kernel, _pairs(2)) for kernel in ((3, 5), (5, 3), (1, 3), (3, 1))),
    *(_uneven(kernel, _pairs(2), mode="circular") for kernel in ((3, 5), (5, 3))),
    *(_uneven((3, 5), _pairs(2), stride=stride) for stride in (1, 2)),
    *(_uneven(kernel, _EIGHT, size=32) for kernel in ((3, 5, 7), (1, 3, 5), (7, 3, 1))),
)


def _transposed(dims: int, kernel: int, stride: int, first: int = 0) -> Table:
    """Padding as its tests choose it: the output has `stride` times as many rows as the input without circular padding."""
    settings = {
        "kernel_size": kernel,
        "stride": stride,
        "padding": (kernel + 2 * first * stride - 1) // 2,
        "output_padding": stride - 1,
    }
    pad_first = (first, first) * dims if first else ()
    return Table(f"ConvTranspose{dims}d", _cube(dims), _each(dims, 4), {**CHANNELS, **settings}, pad_first=pad_first)


TRANSPOSED = tuple(
    _transposed(dims, kernel, stride, first)
    for dims in (1, 2, 3)
    for kernel in (1, 3, 5)
    for stride in (1, 2, 4)
    for first in ((0, kernel // 2) if kernel > 1 else (0,))
)
CHANNELS_LAST = tuple(
    Table(
        f"Conv{dims}d",
        _cube(dims),
        _each(dims, 4),
        {**CHANNELS, **_same(kernel), "padding_mode": mode},
        memory_format="channels_last" if dims == 2 else "channels_last_3d",
    )
    for dims in (2, 3)
    for mode, kernels in (("zeros", (1, 3, 5)), ("circular", (3, 5)))
    for kernel in kernels
)
HYBRID = tuple(
    Table(
        f"Conv{dims}d",
        _cube(dims, batch=2),
        tuple(((0, 2), (2 + dim, 2)) for dim in range(dims)),
        {**CHANNELS, **_same(kernel)},
    )
    for dims in (1, 2, 3)
    for kernel in (1, 3, 5)
)
TWICE = tuple(
    Table(
        f"Conv{dims}d",
        _cube(dims, 16),
        _each(dims, 2),
        {**CHANNELS, **_same(kernel), "padding_mode": "circular", "bias": False},
        second=second,
    )
    for dims in (1, 2, 3)
    for kernel in (1, 3, 5)
    for second in ("gradient", "both")
)

TABLES: tuple[Table, ...] = (
    *BASIC, *STRIDES, *PERIODIC, *SPLITTING, *THREE_WAYS, *KERNELS, *TRANSPOSED, *CHANNELS_LAST, *HYBRID, *TWICE,
)  # fmt: skip
