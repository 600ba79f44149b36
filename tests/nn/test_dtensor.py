"""DTensor and DeviceMesh: the same numbers on the same workers, both ways; what a DTensor cannot hold is named."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gridwise
from gridwise import checkpoint
from gridwise.comm.launching.pool import Pool
from gridwise.errors import PartitionError
from gridwise.grid import chunked_cuts


@pytest.fixture(scope="module")
def launched() -> Any:
    """Jobs of their own, because a mesh counts the ranks of torch.distributed; one for each number of workers."""
    pools: dict[int, Pool] = {}

    def run(workers: int, body: Callable[..., Any], *arguments: Any) -> list[Any]:
        if workers not in pools:
            pools[workers] = Pool(workers, "gloo")
        return pools[workers].run(body, *arguments, timeout=100)

    yield run
    for pool in pools.values():
        pool.close()


@pytest.mark.parametrize("extent", range(12))
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 7])
def test_cuts_are_those_of_chunk(extent: int, blocks: int) -> None:
    sizes = [len(part) for part in torch.arange(extent).chunk(blocks)] if extent else []
    sizes += [0] * (blocks - len(sizes))
    cuts = chunked_cuts(extent, [blocks])
    assert [b - a for a, b in pairwise(cuts)] == sizes


def whole(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(float(math.prod(shape))).reshape(shape)


def _both_ways() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    world = gridwise.world()
    mesh = init_device_mesh("cpu", (world.size,))
    P = gridwise.partition_from_mesh(mesh)
    assert P.shape == (world.size,)
    assert P.ranks == tuple(range(world.size))
    back = gridwise.mesh_from_partition(P, names=["all"])
    assert torch.equal(back.mesh, mesh.mesh)
    assert back.mesh_dim_names == ("all",)

    for shape, dim in (((7, 4), 0), ((4, 5), 1), ((4, 2), 0), ((1, 3), 0)):
        full = whole(shape)
        x = distribute_tensor(full, mesh, [Shard(dim)]).requires_grad_()
        block, P_x = gridwise.from_dtensor(x)
        assert P_x.shape == tuple(world.size if d == dim else 1 for d in range(2))
        assert torch.equal(
            block, full.chunk(world.size, dim)[world.rank] if block.numel() else full[:0].reshape(block.shape)
        )
        y = gridwise.to_dtensor(2 * block, P_x, mesh, [Shard(dim)])
        assert torch.equal(y.full_tensor(), 2 * full)
        (y * y).sum().full_tensor().backward()
        assert torch.equal(x.grad.full_tensor(), 8 * full)

    x = distribute_tensor(whole((3, 2)), mesh, [Replicate()])
    block, P_x = gridwise.from_dtensor(x)
    assert P_x.ranks == (0,)
    assert block.shape == ((3, 2) if world.rank == 0 else (0,))
    partial = torch.distributed.tensor.DTensor.from_local(torch.ones(2), mesh, [Partial()])
    with pytest.raises(PartitionError, match="Shard or Replicate"):
        gridwise.from_dtensor(partial)


def test_both_ways_on_three_workers(launched: Any) -> None:
    launched(3, _both_ways)


def _layer_between() -> None:
    """A DTensor through a layer of Gridwise: the numbers of torch, forward and back."""
    from torch.distributed.tensor import Shard, distribute_tensor

    world = gridwise.world()
    mesh = dist.device_mesh.init_device_mesh("cpu", (1, 3))
    full = torch.randn(2, 3, 9, 5, generator=torch.Generator().manual_seed(1))
    x = distribute_tensor(full, mesh, [Shard(0), Shard(2)]).requires_grad_()
    block, P_x = gridwise.from_dtensor(x)
    assert P_x.shape == (1, 1, 3, 1)
    torch.manual_seed(0)
    layer = gridwise.nn.DistributedConv2d(P_x, 3, 4, kernel_size=3, padding=1)
    y = gridwise.to_dtensor(layer(block), P_x, mesh, [Shard(0), Shard(2)])
    torch.manual_seed(0)
    sequential = torch.nn.Conv2d(3, 4, kernel_size=3, padding=1)
    plain = full.clone().requires_grad_()
    due = sequential(plain)
    torch.testing.assert_close(y.full_tensor(), due)
    y.sum().full_tensor().backward()
    due.sum().backward()
    torch.testing.assert_close(x.grad.full_tensor(), plain.grad)
    assert world.size == 3


def test_a_layer_between_two_dtensors(launched: Any) -> None:
    launched(3, _layer_between)


def _uneven() -> list[str]:
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition([3])
    full = whole((4,))
    mine = gridwise.local_slice(P_x, (4,))
    errors = []
    mesh = gridwise.mesh_from_partition(P_x)
    try:
        gridwise.to_dtensor(full[mine], P_x, mesh)
    except PartitionError as error:
        errors.append(str(error))
    moved = gridwise.nn.Repartition(P_x, P_x, cuts=[[0, 2, 4, 4]])(full[mine])
    assert torch.equal(gridwise.to_dtensor(moved, P_x, mesh).full_tensor(), full)
    P_turned = world.create_partition_inclusive([2, 1, 0]).create_cartesian_topology_partition([3])
    try:
        gridwise.to_dtensor(full[:2], P_turned, mesh)
    except PartitionError as error:
        errors.append(str(error))
    return errors


def test_blocks_that_a_dtensor_cannot_hold_are_named(launched: Any) -> None:
    said = launched(3, _uneven)
    assert said[0] == said[1] == said[2]
    first, second = said[0]
    assert "worker 1: [2] to [3], a DTensor has [2] to [4]" in first
    assert "cuts=[[0, 2, 4, 4]]" in first
    assert "worker 0" not in first
    assert "other workers than `P_x`" in second


STATE = {"w": (7, 4), "v": (5, 6), "n": ()}


def _dtensors(path: str, fill: bool) -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (gridwise.world().size,))
    how = {"w": Shard(0), "v": Shard(1), "n": Replicate()}
    state = {
        name: distribute_tensor(whole(s) + 1 if fill else torch.zeros(s), mesh, [how[name]])
        for name, s in STATE.items()
    }
    if fill:
        checkpoint.save(path, state)
    else:
        checkpoint.load(path, into=state)
    return {name: x.full_tensor() for name, x in state.items()}


def _onto_a_grid(path: str, back: str) -> None:
    """Blocks along the other dims, on three workers; then from these blocks to files again."""
    from gridwise.nn.parameters.blocks import BlockTensor

    world = gridwise.world()
    state: dict[str, Any] = {}
    for name, shape, grid in (("w", (7, 4), (1, 3)), ("v", (5, 6), (3, 1))):
        P_x = world.create_cartesian_topology_partition(grid)
        layout = gridwise.grid.Layout.balanced(P_x.geometry, shape)
        block = torch.zeros(layout.block(world.rank).shape).as_subclass(BlockTensor)
        block.placement, block.block = layout, layout.block(world.rank)
        state[name] = block
    state["n"] = torch.zeros(())
    checkpoint.load(path, into=state)
    for name in ("w", "v"):
        assert torch.equal(state[name].as_subclass(torch.Tensor), (whole(STATE[name]) + 1)[state[name].block.slices])
    checkpoint.save(back, state)


def test_a_state_of_two_ranks_onto_a_grid_of_three_and_back(launched: Any, tmp_path: Path) -> None:
    launched(2, _dtensors, str(tmp_path / "dtensors"), True)
    launched(3, _onto_a_grid, str(tmp_path / "dtensors"), str(tmp_path / "blocks"))
    for found in launched(2, _dtensors, str(tmp_path / "blocks"), False):
        assert {name: x.shape for name, x in found.items()} == STATE
        assert all(torch.equal(x, whole(STATE[name]) + 1) for name, x in found.items())


def test_one_process_has_no_ranks_of_torch() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1])
    with pytest.raises(PartitionError, match="counts ranks of torch"):
        gridwise.to_dtensor(torch.ones(2), P)
