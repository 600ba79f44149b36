"""What ShardTensor's tests call: the parameters of test/domain_parallel of NVIDIA's PhysicsNeMo.

Convolution (62520f7c), normalisation, selection (51f6f55f), views (73a9d068), attention (21184f01) and reductions (9df7f15c)
were read from its repository in November 2026, pooling, padding and interpolation from a fork (mnabian/physicsnemo 1f771f5c).
Its meshes have as many devices as there are; here they are 4, or 2 x 2.
"""

from __future__ import annotations

from .table import Arguments, Cut, Shape, Table

SOURCE = "PhysicsNeMo, main branch of November 2026"
BOTH = (False, True)


def _one(dim: int) -> tuple[Cut, ...]:
    return (((dim, 4),),)


def _two(first: int) -> tuple[Cut, ...]:
    return (((first, 2), (first + 1, 2)),)


def _images(*sizes: Shape, channels: int = 16) -> tuple[tuple[Shape, ...], ...]:
    return tuple(((2, channels, *size),) for size in sizes)


def _convolution_fails(arguments: Arguments, cut: Cut, gradient: bool) -> bool:
    """Any kernel whose stride is another, but odd ones of stride 1; gradients on 2-D meshes."""
    kernel, stride = arguments["kernel_size"], arguments["stride"]
    return ((kernel % 2 == 0 or stride > 1) and stride != kernel) or (gradient and len(cut) == 2)


def _transposed_fails(arguments: Arguments, cut: Cut, gradient: bool) -> bool:
    """Any but even kernels of the same stride; gradients on 2-D meshes."""
    return arguments["kernel_size"] % 2 == 1 or _convolution_fails(arguments, cut, gradient)


def _convolution(call: str, cuts: tuple[Cut, ...], *sizes: Shape) -> Table:
    return Table(
        call,
        _images(*sizes),
        cuts,
        fixed={"in_channels": 16, "out_channels": 8, "padding": 0, "dilation": 1, "groups": 1},
        varied={"kernel_size": (2, 3), "stride": (1, 2)},
        gradients=BOTH,
        refused_there=_transposed_fails if "Transpose" in call else _convolution_fails,
    )


CONVOLUTION = (
    _convolution("Conv1d", _one(2), (32,), (256,)),
    _convolution("ConvTranspose1d", _one(2), (32,), (256,)),
    _convolution("Conv2d", _one(2), (128, 128), (256, 256)),
    _convolution("ConvTranspose2d", _one(2), (64, 32), (512, 256)),
    _convolution("Conv2d", _two(2), (128, 128), (256, 256)),
    _convolution("ConvTranspose2d", _two(2), (64, 64), (512, 512)),
    _convolution("Conv3d", _one(2), (64, 64, 64)),
    _convolution("ConvTranspose3d", _one(2), (32, 32, 32), (64, 64, 64)),
    _convolution("Conv3d", _two(2), (64, 64, 64)),
    _convolution("ConvTranspose3d", _two(2), (32, 32, 32), (64, 64, 64)),
)


def _pooling(call: str, cuts: tuple[Cut, ...], *sizes: Shape) -> Table:
    return Table(
        call,
        _images(*sizes),
        cuts,
        varied={"kernel_size": (2, 4), "stride": (2, 4)},
        gradients=BOTH,
        refused_there=lambda arguments, cut, gradient: arguments["kernel_size"] != arguments["stride"],
    )


POOLING = tuple(
    table
    for kind in ("AvgPool", "MaxPool")
    for table in (
        _pooling(f"{kind}1d", _one(2), (32,), (256,)),
        _pooling(f"{kind}2d", _one(3), (32, 32), (256, 256)),
        _pooling(f"{kind}2d", _two(2), (32, 32), (256, 256)),
        _pooling(f"{kind}3d", _one(4), (32, 32, 32), (128, 128, 128)),
        _pooling(f"{kind}3d", _two(3), (32, 32, 32), (128, 128, 128)),
    )
)

_SIDES = {"padding": (2, (1, 2, 3, 4))}
PADDING = (
    Table("ConstantPad2d", _images((128, 128)), _one(2), {"value": 1.234}, _SIDES, BOTH),
    Table("ConstantPad2d", _images((128, 128)), _two(2), {"value": 1.234}, _SIDES, BOTH),
    Table("ReflectionPad2d", _images((128, 128)), _one(2), {}, _SIDES, BOTH),
    Table("ReplicationPad2d", _images((128, 128)), _one(2), {}, _SIDES, BOTH),
    Table(
        "Conv2d",
        _images((256, 256), channels=8),
        _one(2),
        {"in_channels": 8, "out_channels": 8, "kernel_size": 3, "padding": 2},
        {"padding_mode": ("reflect", "replicate")},
        BOTH,
    ),
)

_FACTORS = {"scale_factor": (2, 3)}
INTERPOLATION = (
    Table("Upsample", _images((32, 32), (256, 32)), _one(2), {"mode": "nearest"}, _FACTORS, BOTH),
    Table("Upsample", _images((32, 32), (256, 32)), _two(2), {"mode": "nearest"}, _FACTORS, BOTH),
    Table("Upsample", _images((32, 32, 32), (256, 32, 32)), _one(4), {"mode": "nearest"}, _FACTORS, BOTH),
    Table("Upsample", _images((32, 32, 32), (256, 32, 32)), _two(3), {"mode": "nearest"}, _FACTORS, BOTH),
)

_AFFINE = {"elementwise_affine": (True, False)}
_GROUPS = {"num_groups": (1, 4), "affine": (True, False)}
NORMALISATION = tuple(
    table
    for autocast in BOTH
    for table in (
        Table(
            "LayerNorm",
            _images((128,)),
            _one(2),
            {"normalized_shape": 128},
            _AFFINE,
            (False,),
            refused_there=lambda arguments, cut, gradient: bool(arguments["elementwise_affine"]),
            autocast=autocast,
        ),
        Table(
            "GroupNorm",
            _images((256, 256), channels=256),
            _one(2),
            {"num_channels": 256},
            _GROUPS,
            BOTH,
            autocast=autocast,
        ),
    )
)


def _attention(batches: tuple[int, ...], queries: int, keys: int, width: int) -> tuple[tuple[Shape, ...], ...]:
    return tuple(((b, 8, queries, width), (b, 8, keys, width), (b, 8, keys, width)) for b in batches)


ATTENTION = (
    *(
        Table(
            "F.scaled_dot_product_attention",
            _attention((1, 4), n, n, width),
            _one(2),
            gradients=BOTH,
            cut_tensors=(0, 1, 2),
        )
        for n in (256, 512)
        for width in (32, 64)
    ),
    *(
        Table(
            "F.scaled_dot_product_attention",
            _attention(batches, queries, keys, 32),
            _one(2),
            gradients=BOTH,
            cut_tensors=cut_tensors,
            autocast=autocast,
        )
        for batches, queries, keys, cut_tensors in (
            ((2,), 256, 256, (0, 1, 2)),
            ((1, 2), 64, 256, (1, 2)),
            ((1, 2), 256, 64, (0,)),
        )
        for autocast in BOTH
    ),
)


def _view(call: str, shape: Shape, target: Shape, dim: int) -> Table:
    workers = 2 if shape[dim] < 8 else 4
    return Table(call, ((shape,),), (((dim, workers),),), {"args": (target,)}, gradients=BOTH)


VIEWS = (
    _view("Tensor.view", (4, 128, 8, 4), (4, 128, 32), 1),
    _view("Tensor.view", (4, 128, 32), (4, 128, 8, 4), 1),
    _view("Tensor.view", (4, 128, 8), (4, -1), 1),
    _view("Tensor.view", (4, 128, 8, 4), (4, -1, 32), 1),
    _view("Tensor.reshape", (4, 128, 8, 4), (4, 128, 32), 1),
    _view("torch.reshape", (4, 128, 8, 4), (4, 128, 32), 1),
    _view("Tensor.view", (4, 128, 8, 4), (4, 128, 32), 0),
    _view("merged_and_split", (2, 64, 8, 4), (2, 64, 8, 4), 1),
    _view("Tensor.view", (6,), (2, 3, 1), 0),
)

_CUBE: tuple[tuple[Shape, ...], ...] = (((128, 128, 128),),)
SELECTION = (
    Table("torch.select", _CUBE, _one(2), {"args": (1, 2)}, gradients=BOTH),
    Table("index_select", _CUBE, _one(2), {"args": (1, 256)}, gradients=BOTH),
    Table("torch.unbind", (((19, 3, 4),),), (((0, 2),), ((0, 4),)), {"args": (1,)}),
)

REDUCTIONS = (
    *(
        Table(f"{where}.{name}", (((2, 128, 2),),), _one(1), {}, {"dim": (None, 0, (0, 1))})
        for where in ("torch", "Tensor")
        for name in ("sum", "mean")
    ),
    Table("masked_error", (((2, 400, 5), (2, 400, 5)),), _one(1), gradients=(False,), cut_tensors=(0, 1)),
)

TABLES = (
    *CONVOLUTION, *POOLING, *PADDING, *INTERPOLATION, *NORMALISATION, *ATTENTION, *VIEWS, *SELECTION, *REDUCTIONS,
)  # fmt: skip
