"""Large messages and sums go through shared memory on one node: the numbers must be those of plain messages."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise import nn
from gridwise.comm.messages.packing import chunks
from gridwise.testing import workers

ROWS, COLUMNS = 301, 1027


def whole() -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@workers(2, 3, 4)
def test_large_blocks_move_and_come_back_exactly():
    world = gridwise.world()
    n, x = world.size, whole()
    P_x, P_y = (world.create_cartesian_topology_partition(shape) for shape in ([n, 1], [1, n]))
    block = x[gridwise.local_slice(P_x, x.shape)].clone().requires_grad_()
    layer = nn.Repartition(P_x, P_y)
    for _ in range(3):
        y = layer(block)
        assert torch.equal(y, x[gridwise.local_slice(P_y, x.shape)])
        (dx,) = torch.autograd.grad(y, block, y.detach())
        assert torch.equal(dx, block)


@workers(2, 4)
def test_wide_halos_are_added_back_exactly():
    world = gridwise.world()
    P_x = world.create_cartesian_topology_partition([world.size, 1])
    x = whole().round()
    block = x[gridwise.local_slice(P_x, x.shape)].clone().requires_grad_()
    y = nn.HaloExchange(P_x, [(60, 90), (0, 0)])(block)
    y.sum().backward()
    gathered = gridwise.gather(block.grad, P_x)
    if world.rank == 0:
        cuts = [
            (s.start, s.stop)
            for s in (
                gridwise.grid.Layout.balanced(P_x.geometry, x.shape).block(r).slices[0] for r in range(world.size)
            )
        ]
        needed = torch.zeros(ROWS, dtype=torch.float64)
        for start, stop in cuts:
            needed[max(0, start - 60) : stop + 90] += 1
        assert torch.equal(gathered, needed[:, None].expand(ROWS, COLUMNS))


@workers(2, 3, 4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.complex64])
def test_large_sums_are_right_and_the_same_on_all_workers(dtype):
    world = gridwise.world()
    x = (whole() * 4).round().to(dtype) * (world.rank + 1)
    y = nn.AllSumReduce(world, (0,))(x.t())
    expected = (whole() * 4).round().to(dtype) * sum(range(1, world.size + 1))
    assert torch.equal(y, expected.t())


@workers(4)
def test_teams_that_share_workers_do_not_read_each_others_numbers():
    P = gridwise.world().create_cartesian_topology_partition([2, 2])
    rows, columns = nn.AllSumReduce(P, (0,)), nn.AllSumReduce(P, (1,))
    x = torch.full((200_000,), float(P.rank))
    for _ in range(20):
        along = float(P.index[1] * 2 + 2), float(P.index[0] * 4 + 1)
        assert torch.equal(rows(x), torch.full_like(x, along[0]))
        assert torch.equal(columns(x), torch.full_like(x, along[1]))


@workers(3)
def test_messages_of_all_sizes_between_the_same_workers_keep_their_order():
    world = gridwise.world()
    transport, rank, n = world.transport, world.rank, world.size
    for step in range(30):
        count = 1 + (step * 7919) % 200_000
        out = [(peer, [torch.full((count,), float(rank * 100 + step))]) for peer in range(n) if peer != rank]
        into = [(peer, [torch.empty(count)]) for peer in range(n) if peer != rank]
        transport.move(out, into, torch.float32).wait()
        for peer, (arrived,) in into:
            assert torch.equal(arrived, torch.full((count,), float(peer * 100 + step)))


def test_chunks_cover_every_element_once_in_order():
    views = [torch.arange(60).view(3, 4, 5)[:, 1:3], torch.arange(100, 107), torch.arange(200, 300).view(2, 50)]
    for limit in (1, 3, 7, 30, 1000):
        groups = list(chunks(views, limit))
        assert all(sum(piece.numel() for piece in group) <= limit for group in groups)
        flat = torch.cat([piece.reshape(-1) for group in groups for piece in group])
        assert torch.equal(flat, torch.cat([view.reshape(-1) for view in views]))


@workers(2, 3)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [300, 3000])
def test_large_halves_are_added_in_float32_also_when_they_go_one_way(dtype, rows):
    world = gridwise.world()
    n = world.size
    P = world.create_cartesian_topology_partition([n, 1])
    scattered = nn.ReduceScatter(P, (0,))(torch.ones(rows * n, 1000, dtype=dtype))
    assert torch.equal(scattered, torch.full_like(scattered, float(n)))
    for layer in (nn.AllGather(P, (0,)), nn.HaloExchange(P, [(rows, 0), (0, 0)])):
        x = torch.ones(rows, 1000, dtype=dtype, requires_grad=True)
        layer(x).backward(torch.ones_like(layer(x)))
        uses = n if isinstance(layer, nn.AllGather) else min(2, n - world.rank)
        assert torch.equal(x.grad, torch.full_like(x, float(uses)))
