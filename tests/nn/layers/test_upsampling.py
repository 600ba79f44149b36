"""Interpolation on a grid equals torch's: every mode, up and down, awkward sizes, uneven and empty blocks."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch

import gridwise
from gridwise.grid import Layout
from gridwise.testing import check_equal_to_sequential, check_gradients, workers

nn = gridwise.nn
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def grid_of(workers: int, dim: int, rng: random.Random) -> tuple[int, ...]:
    """A random grid of so many workers with so many axes."""
    shape = [1] * dim
    for prime in (2, 2, 3, 5, 7):
        if workers % prime == 0:
            shape[rng.randrange(dim)] *= prime
            workers //= prime
    return tuple(shape)


def uneven(shape: tuple[int, ...], P_x: Any, rng: random.Random) -> Layout:
    """Any cut of each dim, with empty blocks."""
    cuts = []
    for n, p in zip(shape, P_x.shape, strict=True):
        cuts.append((0, *sorted(rng.randint(0, n) for _ in range(p - 1)), n))
    return Layout(P_x.geometry, tuple(cuts))


def random_case(rng: random.Random) -> tuple[tuple[int, ...], dict[str, Any]]:
    space = rng.choice((1, 1, 2, 2, 3))
    sizes = tuple(rng.randint(1, 13 if space < 3 else 5) for _ in range(space))
    mode = rng.choice(("nearest", "nearest-exact", LINEAR[space], "bicubic" if space == 2 else LINEAR[space]))
    options: dict[str, Any] = {"mode": mode}
    if not mode.startswith("nearest"):
        options["align_corners"] = rng.choice((None, False, True))
    if rng.random() < 0.5:
        options["size"] = tuple(rng.randint(1, 17 if space < 3 else 6) for _ in range(space))
    else:
        factors = [rng.choice((0.4, 0.5, 2 / 3, 1.0, 1.3, 1.5, 2.0, 2.7, 3.0)) for _ in range(space)]
        factors = [max(factor, 1 / n) for factor, n in zip(factors, sizes, strict=True)]
        # torch's gradient of these is not that of its output: see `_planned`
        copied = {"nearest": (1, 2), "nearest-exact": (1, 2), "bicubic": (1,)}.get(mode, ())
        factors = [
            round(f) or f if int(n * f) in [n * m for m in copied] else f for f, n in zip(factors, sizes, strict=True)
        ]
        options["scale_factor"] = rng.choice((factors[0], tuple(factors))) if len({*sizes}) == 1 else tuple(factors)
        options["recompute_scale_factor"] = rng.choice((None, True))
    return (rng.randint(1, 3), rng.randint(1, 3), *sizes), options


def run_random_cases(first: int, cases: int) -> None:
    for seed in range(first, first + cases):
        rng = random.Random(seed)
        shape, options = random_case(rng)
        P_x = gridwise.world().create_cartesian_topology_partition(grid_of(gridwise.world().size, len(shape), rng))
        layout = uneven(shape, P_x, rng) if rng.random() < 0.5 else None
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        layer = nn.DistributedUpsample(P_x, **options)
        try:
            check_equal_to_sequential(layer, torch.nn.Upsample(**options), x, P_x, layout=layout)
        except Exception as error:
            raise AssertionError(f"case {seed}: {shape} on {P_x.shape}, {layout and layout.cuts}, {options}") from error


@workers(1, 2, 3, 4)
def test_random_configurations(gridwise_setting: tuple[str, int]) -> None:
    run_random_cases(100 * gridwise_setting[1], 8 if gridwise_setting[0] == "gloo" else 25)


@workers(1, 2, 3, 4, transports=("mpi",))
def test_doubling(gridwise_setting: tuple[str, int]) -> None:
    """Blocks of pairs and others, cut anywhere, doubled in all dims, in one, and with another factor beside."""
    rng = random.Random(gridwise_setting[1])
    for case in range(20):
        space = rng.choice((1, 2, 2, 3))
        factors = tuple(rng.choice((2.0, 2.0, 2.0, 1.5)) for _ in range(space))
        shape = (rng.randint(1, 2), rng.randint(1, 2), *(rng.randint(2, 9) for _ in range(space)))
        options: dict[str, Any] = {"mode": LINEAR[space], "scale_factor": factors}
        P_x = gridwise.world().create_cartesian_topology_partition(grid_of(gridwise.world().size, len(shape), rng))
        layout = uneven(shape, P_x, rng) if rng.random() < 0.5 else None
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(case))
        layer = nn.DistributedUpsample(P_x, **options)
        check_equal_to_sequential(layer, torch.nn.Upsample(**options), x, P_x, layout=layout)


@pytest.mark.soak
@workers(2, 3, 4, transports=("mpi",))
def test_many_random_configurations() -> None:
    run_random_cases(10_000 * gridwise.world().size, 500)


@workers(2)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
def test_float32_at_awkward_sizes(mode: str) -> None:
    """Factors that no binary number equals: sources must be those of torch's own float32 arithmetic."""
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2])
    for n_in, options in [
        (1023, {"size": 3071}),
        (997, {"scale_factor": 3.3}),
        (555, {"size": 333}),
        (7, {"size": 4999}),
    ]:
        x = torch.randn(1, 2, n_in)
        layer, torch_layer = nn.DistributedUpsample(P_x, mode=mode, **options), torch.nn.Upsample(mode=mode, **options)
        y = layer(x[gridwise.local_slice(P_x, x.shape)])
        expected = torch_layer(x)
        expected = expected[gridwise.local_slice(P_x, expected.shape)]
        # 1e-4: a weight near a source's edge has lost the digits of the coordinate, in torch as here
        torch.testing.assert_close(y, expected, rtol=0, atol=0 if mode.startswith("nearest") else 1e-4)


@workers(1, 2, 4, transports=("mpi",))
def test_bicubic_at_borders_up_and_down() -> None:
    """Every way to reach a row: whole dims, powers of two, odd factors; rows repeated at the global edge only."""
    world = gridwise.world()
    for grid in {(1, 1, world.size, 1), (1, 1, 1, world.size), (1, 1, min(2, world.size), max(1, world.size // 2))}:
        P_x = world.create_cartesian_topology_partition(grid)
        for options in (
            {"scale_factor": 2},
            {"scale_factor": (4.0, 0.5)},
            {"scale_factor": (1.7, 0.6), "recompute_scale_factor": True},
            {"scale_factor": (0.7, 3.1)},
            {"size": (1, 23)},
            {"size": (11, 7)},
            {"size": (3, 40)},
        ):
            for corners in (False, True):
                if corners and options.get("recompute_scale_factor"):
                    continue
                for shape in ((2, 3, 11, 7), (1, 2, 1, 9)):
                    arguments = {**options, "mode": "bicubic", "align_corners": corners}
                    if min(int(n * f) for n, f in zip(shape[2:], factors(options), strict=True)) < 1:
                        continue
                    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
                    layer, sequential = nn.DistributedUpsample(P_x, **arguments), torch.nn.Upsample(**arguments)
                    check_equal_to_sequential(layer, sequential, x, P_x, rtol=1e-10, atol=1e-10)


def factors(options: dict[str, Any]) -> tuple[float, float]:
    given = options.get("scale_factor", 1.0)
    return given if isinstance(given, tuple) else (given, given)


@workers(2)
def test_bicubic_in_float32_and_halves() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    for options in ({"size": (71, 13)}, {"scale_factor": 3.3}, {"scale_factor": 2.0}):
        for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 5e-2)):
            x = torch.randn(1, 2, 33, 10, generator=torch.Generator().manual_seed(1)).to(dtype)
            y = nn.DistributedUpsample(P_x, mode="bicubic", **options)(x[gridwise.local_slice(P_x, x.shape)])
            expected = torch.nn.Upsample(mode="bicubic", **options)(x)
            expected = expected[gridwise.local_slice(P_x, expected.shape)]
            torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)


@workers(2)
def test_half_integers_and_double_backward() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    up = nn.DistributedUpsample(P_x, scale_factor=2, mode="bilinear", align_corners=True)
    check_gradients(lambda x: up(x) ** 2, torch.randn(1, 2, 3, 2, dtype=torch.float64))
    x = torch.randn(2, 2, 6, 5)
    block = gridwise.local_slice(P_x, x.shape)
    y = up(x.bfloat16()[block])
    whole = torch.nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)(x.bfloat16())
    torch.testing.assert_close(y, whole[gridwise.local_slice(P_x, whole.shape)], rtol=1e-2, atol=1e-2)
    nearest = nn.DistributedUpsample(P_x, size=(7, 5))
    bytes_ = (x * 50 + 128).to(torch.uint8)
    whole = torch.nn.Upsample(size=(7, 5))(bytes_)
    assert torch.equal(nearest(bytes_[block]), whole[gridwise.local_slice(P_x, whole.shape)])


@workers(3)
def test_workers_outside_take_part_in_nothing() -> None:
    P_x = gridwise.world().create_partition_inclusive([1, 2]).create_cartesian_topology_partition([1, 1, 2])
    x = torch.randn(1, 2, 7, dtype=torch.float64)
    options: dict[str, Any] = {"scale_factor": 1.5, "mode": "linear"}
    check_equal_to_sequential(nn.DistributedUpsample(P_x, **options), torch.nn.Upsample(**options), x, P_x)


@workers(1, 2)
def test_the_gradient_is_that_of_the_output() -> None:
    """Where torch's own is not: three rows scaled by 1.3 are three rows again, which its backward takes for a copy."""
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, gridwise.world().size, 1, 1])
    layer = nn.DistributedUpsample(P_x, scale_factor=(1.3, 1.0, 1.0))
    x = torch.arange(3.0, dtype=torch.float64).view(1, 1, 3, 1, 1)[gridwise.local_slice(P_x, (1, 1, 3, 1, 1))]
    y = gridwise.gather(layer(x.clone()), P_x)
    assert y.numel() == 0 or y.flatten().tolist() == [0.0, 0.0, 1.0]
    check_gradients(layer, x.clone())
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, gridwise.world().size, 1])
    cubic = nn.DistributedUpsample(P_x, scale_factor=(1.3, 1.0), mode="bicubic")
    x = torch.randn(1, 1, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = gridwise.gather(cubic(x[gridwise.local_slice(P_x, x.shape)].clone()), P_x)
    whole = torch.nn.functional.interpolate(x, scale_factor=(1.3, 1.0), mode="bicubic")
    assert y.numel() == 0 or torch.allclose(y, whole)
    check_gradients(cubic, x[gridwise.local_slice(P_x, x.shape)].clone())


LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@workers(1, 2)
@pytest.mark.parametrize(
    ("shape", "factors"),
    [
        ((1, 2, 5), (1.1,)),
        ((1, 2, 5, 4), (1.1, 2.1)),  # copied and doubled, for the output is small
        ((1, 2, 5, 125), (1.1, 1.0)),
        ((1, 4, 5, 125), (1.1, 1.0)),  # copied with channels last
        ((1, 3, 5, 3, 4), (1.1, 1.3, 1.0)),
        ((1, 4, 5, 3, 4), (1.1, 2.1, 1.0)),  # likewise
        ((2, 4, 5, 3, 4), (1.1, 2.1, 1.0)),
        ((1, 4, 123, 6), (0.99, 1.1)),  # the kernel for channels last calculates in float32
    ],
)
def test_nearest_rows_are_those_of_torchs_kernel_for_the_whole(shape: Any, factors: Any) -> None:
    """Torch has two, which differ where a factor keeps an extent or doubles it without being 1 or 2."""
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, gridwise.world().size, *(1,) * (len(shape) - 3)])
    for mode in ("nearest", "nearest-exact"):
        options: dict[str, Any] = {"scale_factor": factors, "mode": mode}
        layer, sequential = nn.DistributedUpsample(P_x, **options), torch.nn.Upsample(**options)
        model = gridwise.distribute(copy.deepcopy(sequential), P_x)
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        for format in (torch.contiguous_format, LAST.get(x.dim(), torch.contiguous_format), torch.contiguous_format):
            whole = x.contiguous(memory_format=format)
            expected = sequential(whole)
            expected = expected[gridwise.local_slice(P_x, expected.shape)]
            own = whole[gridwise.local_slice(P_x, shape)]
            for block in (own.contiguous(memory_format=format), own):  # a slice says how its tensor lies in memory
                assert torch.equal(layer(block), expected), (mode, format)
                assert torch.equal(model(block), expected), (mode, format, "distribute")


@workers(2)
def test_refusals() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2])
    x = torch.ones(1, 1, 2)
    with pytest.raises(gridwise.errors.UnsupportedError, match="area"):
        nn.DistributedUpsample(P_x, size=3, mode="area")
    for options in ({"size": (3, 3)}, {"size": 3, "scale_factor": 2.0}, {}, {"size": 3, "align_corners": True}):
        with pytest.raises(gridwise.errors.PartitionError, match=r"DistributedUpsample.* of a global input"):
            nn.DistributedUpsample(P_x, **options)(x)
    with pytest.raises(gridwise.errors.PartitionError, match=r"DistributedUpsample.* of a global input"):
        nn.DistributedUpsample(P_x, size=3, mode="bicubic")(x)  # needs two dims of space
    for mode in ("nearest", "linear"):
        with pytest.raises(gridwise.errors.PartitionError, match=r"would be empty|greater than 0"):
            nn.DistributedUpsample(P_x, scale_factor=0.2, mode=mode)(x)
        with pytest.raises(gridwise.errors.PartitionError, match="of a global input of shape"):
            nn.DistributedUpsample(P_x, scale_factor=0.2, mode=mode, recompute_scale_factor=True)(x)
        assert nn.DistributedUpsample(P_x, scale_factor=2, mode=mode)(x[:0]).shape == (0, 1, 4)
    with pytest.raises(gridwise.errors.PartitionError, match="floating-point tensors only"):
        nn.DistributedUpsample(P_x, size=3, mode="linear")(x.long())
