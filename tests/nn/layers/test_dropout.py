"""Dropout: the mask is the same on every grid, keeps what it should, and backward uses it."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import gridwise
from gridwise.grid import Box
from gridwise.operators.random.random_numbers import keep_mask
from gridwise.testing import workers

nn = gridwise.nn
CPU = torch.device("cpu")
KINDS = [
    (nn.DistributedDropout, (4, 6, 5)),
    (nn.DistributedDropout1d, (4, 6, 5)),
    (nn.DistributedDropout2d, (4, 6, 5, 2)),
    (nn.DistributedDropout3d, (4, 6, 5, 2, 2)),
    (nn.DistributedAlphaDropout, (4, 6, 5)),
    (nn.DistributedFeatureAlphaDropout, (4, 6, 5)),
]


def alone(dim: int) -> gridwise.CartesianPartition:
    """This worker by itself: what a sequential program has."""
    world = gridwise.world()
    return world.create_partition_inclusive([world.rank]).create_cartesian_topology_partition([1] * dim)


@workers(1, 2, 3, 4)
def test_masks_do_not_depend_on_the_grid() -> None:
    workers = gridwise.world().size
    for layer, shape in KINDS:
        for axis in range(len(shape)):
            P_x = gridwise.world().create_cartesian_topology_partition(
                [workers if d == axis else 1 for d in range(len(shape))]
            )
            x = torch.randn(shape, dtype=torch.float64)
            block = gridwise.local_slice(P_x, shape)
            torch.manual_seed(7)
            whole = x.clone().requires_grad_()
            expected = layer(alone(len(shape)), p=0.3)(whole)
            torch.manual_seed(7)
            mine = x[block].clone().requires_grad_()
            dropout = layer(P_x, p=0.3)
            actual = dropout(mine)
            torch.testing.assert_close(actual, expected[block])
            again = dropout(mine)
            assert again.numel() == 0 or not torch.equal(actual, again) or layer is not nn.DistributedDropout
            actual.square().sum().backward()
            expected.square().sum().backward()
            torch.testing.assert_close(mine.grad, whole.grad[block])


@workers(3)
def test_workers_whose_generators_differ_still_agree() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([3, 1])
    torch.manual_seed(100 + gridwise.world().rank)
    y = gridwise.gather(nn.DistributedDropout(P_x)(torch.ones(1, 64)), P_x)
    if gridwise.world().rank == 0:
        whole = torch.cat([keep_mask(key, 0.5, (3, 64), Box((0, 0), (3, 64)), CPU)[None] for key in _draws()])
        assert any(torch.equal(2.0 * mask, y.cpu()) for mask in whole)


def _draws() -> list[int]:
    keys = []
    for rank in range(3):
        torch.manual_seed(100 + rank)
        keys.append(int(torch.empty((), dtype=torch.int64, device="cpu").random_()))
    return keys


@workers(2)
def test_recomputed_activations_get_the_same_mask() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([2, 1])
    dropout = nn.DistributedDropout(P_x)
    x = torch.ones(2, 8, requires_grad=True)
    y = checkpoint(lambda t: dropout(t) * t, x, use_reentrant=False)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * y.detach())


def test_probability_and_independence() -> None:
    n = 1 << 18
    for drop in (0.1, 0.5, 0.9):
        keep = keep_mask(12345, drop, (n,), Box((0,), (n,)), CPU).double()
        assert abs(keep.mean().item() - (1 - drop)) < 5 * (drop * (1 - drop) / n) ** 0.5
        for lag in (1, 2, 7, 64, 1024):  # neighbours in memory and along other dims are not alike
            both = (keep[lag:] * keep[:-lag]).mean().item()
            assert abs(both - (1 - drop) ** 2) < 5 * (1 / n) ** 0.5
        other = keep_mask(12346, drop, (n,), Box((0,), (n,)), CPU).double()  # nor are those of neighbouring keys
        assert abs((keep * other).mean().item() - (1 - drop) ** 2) < 5 * (1 / n) ** 0.5


def test_moments_and_edges() -> None:
    P_x = alone(2)
    x = torch.randn(512, 512)
    y = nn.DistributedAlphaDropout(P_x, p=0.4)(x)
    assert abs(y.mean().item()) < 0.02
    assert abs(y.var().item() - 1) < 0.02
    assert torch.equal(nn.DistributedDropout(P_x, p=1.0)(x), torch.zeros_like(x))
    assert torch.equal(nn.DistributedDropout(P_x, p=0.5).eval()(x), x)
    z = x.clone()
    assert nn.DistributedDropout(P_x, inplace=True)(z) is z
    kept = z != 0
    torch.testing.assert_close(z[kept], 2 * x[kept])
    with pytest.raises(gridwise.errors.PartitionError, match="`p`"):
        nn.DistributedDropout(P_x, p=1.5)
    with pytest.raises(gridwise.errors.PartitionError, match="needs a tensor of 3 or 4 dims"):
        nn.DistributedDropout2d(P_x)(x)
