"""What DTensor's tests of convolutions and views call: the parameters of test/distributed/tensor of pytorch.

Read in November 2026: test_convolution_ops.py (01ec7694), test_view_ops.py (08ee6f38). Its view tests leave out dims that a
view merges or splits; here every dim of more than one row is cut in turn.
"""

from __future__ import annotations

from typing import Any

from .table import Cut, Shape, Table

SOURCE = "pytorch, main branch of 2026"


def _rows(shape: Shape) -> tuple[Cut, ...]:
    """Every dim that has several rows, by 2."""
    return tuple(((dim, 2),) for dim, size in enumerate(shape) if size > 1)


def _view(call: str, shape: Shape, *args: Any, **settings: Any) -> Table:
    return Table(call, ((shape,),), _rows(shape), {"args": args, **settings} if args else settings)


CONVOLUTION = (
    Table(
        "Conv2d",
        (((7, 3, 512, 1024),),),
        (((3, 2),),),
        {"in_channels": 3, "out_channels": 256, "kernel_size": 4, "stride": 4},
    ),
    Table(
        "Conv2d",
        (((7, 256, 128, 256),),),
        (((3, 2),),),
        {"in_channels": 256, "out_channels": 256, "kernel_size": 7, "padding": 3, "groups": 256},
    ),
    *(
        Table(
            f"Conv{dims}d",
            (((1, 64) + (size,) * dims,),),
            tuple(((2 + dim, 2),) for dim in range(dims)),
            {"in_channels": 64, "out_channels": 64, "kernel_size": 3, "padding": 1},
        )
        for dims, size in ((1, 8), (2, 32), (3, 8))
    ),
)

VIEWS = (
    *(_view("torch.atleast_1d", shape) for shape in ((24,), (24, 36))),
    *(_view("torch.atleast_2d", shape) for shape in ((24,), (24, 36), (24, 36, 48))),
    *(_view("torch.atleast_3d", shape) for shape in ((24,), (24, 36), (24, 36, 42), (24, 36, 42, 24))),
    _view("torch.broadcast_to", (24, 36), (1, 24, 36)),
    _view("torch.broadcast_to", (24, 36), (42, 24, 36)),
    _view("torch.broadcast_to", (24, 1, 36), (12, 24, 24, 36)),
    _view("torch.broadcast_to", (24, 36), (-1, 36)),
    _view("torch.broadcast_to", (24, 1, 36), (-1, 1, 36)),
    _view("torch.broadcast_to", (36, 1, 24), (12, 36, 42, 24)),
    _view("Tensor.expand", (24, 1, 36, 1), 36, 24, 42, -1, 24),
    _view("Tensor.expand", (24, 1, 36, 1), (36, 24, 42, -1, 24)),
    *(_view("torch.flatten", shape) for shape in ((24, 36), (42,))),
    _view("torch.movedim", (12, 24, 48, 96), 1, 2),
    _view("torch.movedim", (6, 12, 24), 1, 0),
    _view("torch.movedim", (24, 12, 6), (1, 2), (0, 1)),
    _view("torch.movedim", (24, 6, 12), (0, 2, 1), (2, 1, 0)),
    _view("torch.movedim", (24, 12), (1, 0), (0, 1)),
    _view("torch.movedim", (36, 24, 12), (1, 2), (0, 1)),
    _view("torch.movedim", (36, 24, 12), (1, 2), (-3, -2)),
    _view("torch.permute", (24, 36, 42), (2, 0, 1)),
    _view("torch.permute", (24, 36, 42), (-1, -3, -2)),
    *(_view("torch.ravel", shape) for shape in ((24, 36), (42,))),
    _view("Tensor.repeat", (24, 36), 1, 2, 1, 1, 2),
    _view("torch.reshape", (6, 12, 24), (72, 24)),
    _view("torch.tile", (24, 36), (1, 2, 1, 1, 2)),
    _view("torch.tile", (42, 24, 36), (1, 3)),
    _view("torch.transpose", (24, 60, 42, 60), 2, 0),
    _view("torch.transpose", (24, 60, 42, 60), -1, 0),
    _view("torch.unsqueeze", (42, 24, 36), 1),
    _view("Tensor.view", (6, 12, 24), 72, 24),
    _view("Tensor.view", (1, 1, 12), -1),
    _view("Tensor.view", (1, 1, 42, 24), -1),
    _view("Tensor.view", (1, 1, 42, 1, 24, 1), -1),
    _view("Tensor.view", (48, 35, 26), (24, 4, 35, 13)),
    _view("complex_and_back", (24, 13, 2)),
    *(
        Table("Tensor.view", (((rows, 2, 2, 2),),), (((0, 2),),), {"args": target})
        for rows in (1, 3)
        for target in ((rows, 2, 4), (rows, 4, 2), (rows, 8), (rows, 2, 2, 2))
    ),
    _view("Tensor.view", (4, 4), -1, 8),
)

STRIDED = tuple(
    Table(
        "Tensor.as_strided",
        (((n, n, n),),),
        tuple(((dim, 2),) for dim in range(3)),
        {"args": ((n, n, n), stride)},
    )
    for n in (2, 4, 6, 8)
    for stride in ((n * n, n, 1), (n * n, 1, n), (n, n * n, 1), (n, 1, n * n), (1, n * n, n), (1, n, n * n))
)

TABLES: tuple[Table, ...] = (*CONVOLUTION, *VIEWS, *STRIDED)
