"""Gossip: who talks to whom on 2 to 6 nodes, and gradients against the average of two, on real workers."""

from __future__ import annotations

import random

import pytest
import torch

import gridwise
from gridwise.optim import gossip_grad
from gridwise.optim.gossip_grad import NOBODY, Topology, peers


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 6])
def test_everybody_gives_to_one_and_takes_from_one(nodes: int) -> None:
    order = random.Random(nodes).sample(range(0, 2 * nodes, 2), nodes)
    for power in range(3 if nodes > 4 else 2 if nodes > 2 else 1):
        ways = {rank: peers(Topology.DISSEMINATION, order, rank, power) for rank in order}
        assert sorted(give for give, _ in ways.values()) == sorted(order)
        for rank, (give, take) in ways.items():
            assert ways[give][1] == rank == ways[take][0]
            assert give == order[(order.index(rank) + 2**power) % nodes]
        if nodes % 2 == 0:
            pairs = {rank: peers(Topology.CUBE, order, rank, power) for rank in order}
            for rank, (give, take) in pairs.items():
                assert give == take
                assert give == NOBODY or pairs[give] == (rank, rank)


def _gossip() -> None:
    import torch.distributed as dist

    from gridwise.optim import GossipGraDState, SlowMoState, gossip_grad_hook, slowmo_hook

    rank = dist.get_rank()
    value = torch.tensor([float(2**r) for r in range(6)], dtype=torch.float64)
    random.seed(5)
    drawn = random.Random(5).random()
    for size, topology in [(1, Topology.DISSEMINATION), (1, Topology.CUBE), (3, Topology.CUBE)]:
        local, _ = dist.new_subgroups(size)
        nodes = 6 // size
        state = GossipGraDState(2, topology, local, nodes)
        turns = gossip_grad.shuffles([n * size for n in range(nodes)], 2403)
        for call in range(8):
            step = call // 2
            power = step % state.gossip_period
            order = turns[(1 + step // state.gossip_period) % nodes]
            means = {n * size: value[n * size : (n + 1) * size].mean() for n in range(nodes)}
            master = rank // size * size
            _, take = peers(topology, order, master, power)
            right = means[master] if take == NOBODY else (means[master] + means[take]) / 2
            grad = value[rank].expand(4).clone()
            gossip_grad_hook(state, grad)
            torch.testing.assert_close(grad, right.expand(4))
    assert random.random() == drawn  # Python's own generator is left alone
    local, _ = dist.new_subgroups(2)
    for sync in (True, False):
        grad = value[rank].clone()
        slowmo_hook(SlowMoState(local, sync), grad)
        first = rank // 2 * 2
        torch.testing.assert_close(grad, value[first : first + 2].mean() if sync else value[rank])
    for wrong, words in [
        ({"num_modules": 0}, "should bea positive integer"),
        ({"num_modules": 1, "num_nodes": 2}, "provided together"),
        ({"num_modules": 1, "num_nodes": 3, "local_process_group": local, "topology": Topology.CUBE}, "uneven number"),
    ]:
        with pytest.raises(ValueError, match=words):
            GossipGraDState(**wrong)


def test_gradients_are_averaged_with_one_other_node() -> None:
    gridwise.launch(_gossip, workers=6, transport="gloo", timeout=200)
