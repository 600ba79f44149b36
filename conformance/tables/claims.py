"""The calls behind docs/comparison.md, by what they show: small images, cut along a dim of space by 2."""

from __future__ import annotations

from typing import Any

from .table import Cut, Shape, Table

ROWS: Cut = ((2, 2),)
COLUMNS: Cut = ((3, 2),)
GRID: Cut = ((2, 2), (3, 2))
_CHANNELS = {"in_channels": 4, "out_channels": 4}


def _image(*space: int) -> tuple[tuple[Shape, ...], ...]:
    return (((2, 4, *space),),)


def _convolution(kernel: int, padding: int, stride: int = 1, *space: int, cut: Cut = ROWS, **more: Any) -> Table:
    space = space or (16, 12)
    settings = {**_CHANNELS, "kernel_size": kernel, "padding": padding, "stride": stride, **more}
    name = "ConvTranspose" if settings.pop("transposed", False) else "Conv"
    return Table(f"{name}{len(space)}d", _image(*space), (cut,), settings)


def _on(call: str, *space: int, cut: Cut = ROWS, **settings: Any) -> Table:
    return Table(call, _image(*(space or (16, 12))), (cut,), settings)


_SEQUENCES: tuple[tuple[Shape, ...], ...] = (((2, 4, 16, 8),) * 3,)

CLAIMS: dict[str, tuple[Table, ...]] = {
    "odd kernel, same size, even blocks": (
        _convolution(3, 1, 1, 16),
        _convolution(3, 1),
        _convolution(3, 1, cut=COLUMNS),
        _convolution(5, 2),
        _convolution(3, 1, groups=4),
        _convolution(3, 1, 1, 16, 6, 6),
    ),
    "the same, uneven blocks": (
        _convolution(3, 1, 1, 17),
        _convolution(3, 1, 1, 17, 12),
        _convolution(5, 2, 1, 17, 12),
        _convolution(3, 1, 1, 12, 17, cut=COLUMNS),
    ),
    "two dims cut": (_convolution(3, 1, cut=GRID), _convolution(5, 2, 1, 17, 15, cut=GRID)),
    "kernel = stride, no padding": (
        _convolution(2, 0, 2),
        _convolution(2, 0, 2, cut=COLUMNS),
        _convolution(4, 0, 4, 16, 16, cut=COLUMNS),
    ),
    "stride, overlapping windows": (
        _convolution(3, 1, 2),
        _convolution(3, 1, 2, 17, 12),
        _convolution(4, 1, 2),
        _convolution(7, 3, 2),
    ),
    "dilation": (_convolution(3, 2, dilation=2), _convolution(3, 0, dilation=2)),
    "no padding": (_convolution(3, 0), _convolution(5, 0, 1, 17, 12)),
    "circular, reflected, replicated padding": tuple(
        _convolution(3, 1, padding_mode=mode) for mode in ("circular", "reflect", "replicate")
    ),
    "transposed, kernel = stride": (
        _convolution(2, 0, 2, transposed=True),
        _convolution(2, 0, 2, 17, 12, transposed=True),
    ),
    "transposed, overlapping": (
        _convolution(3, 1, transposed=True),
        _convolution(4, 1, 2, transposed=True),
        _convolution(3, 1, 2, output_padding=1, transposed=True),
    ),
    "halo wider than a neighbour": (_convolution(7, 3, 1, 4, 12), _convolution(5, 4, 1, 4, 12, dilation=2)),
    "pooling without overlap": (
        _on("MaxPool2d", kernel_size=2),
        _on("AvgPool2d", kernel_size=2),
        _on("AvgPool1d", 16, kernel_size=2),
    ),
    "pooling with overlap": (
        _on("MaxPool2d", kernel_size=3, stride=2, padding=1),
        _on("AvgPool2d", kernel_size=3, stride=2, padding=1),
        _on("MaxPool2d", 17, 12, kernel_size=3, stride=1, padding=1),
    ),
    "batch norm": (_on("BatchNorm2d", num_features=4, track_running_stats=False),),
    "group norm": (
        _on("GroupNorm", num_groups=2, num_channels=4),
        _on("GroupNorm", cut=GRID, num_groups=2, num_channels=4),
    ),
    "nearest interpolation": (_on("Upsample", scale_factor=2), _on("Upsample", 17, 12, scale_factor=2)),
    "linear interpolation": (
        _on("Upsample", scale_factor=2, mode="bilinear"),
        _on("Upsample", 17, 12, scale_factor=2, mode="bilinear", align_corners=True),
    ),
    "attention over a cut sequence": (
        Table("F.scaled_dot_product_attention", _SEQUENCES, (ROWS,), cut_tensors=(0, 1, 2)),
    ),
    "the same, causal": (
        Table("F.scaled_dot_product_attention", _SEQUENCES, (ROWS,), {"is_causal": True}, cut_tensors=(0, 1, 2)),
    ),
}
TABLES = tuple(table for tables in CLAIMS.values() for table in tables)


def claim_of(case: str) -> str:
    """What a case shows, by its name, which begins with the number of its table."""
    number = int(case.partition(" ")[0])
    for claim, tables in CLAIMS.items():
        if number < len(tables):
            return claim
        number -= len(tables)
    raise KeyError(case)
