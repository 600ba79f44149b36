"""A plan of cut parameters: what workers hold and send is what they are counted to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gridwise
from gridwise.planning import plan
from gridwise.testing import workers


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8))


SIZE = sum(p.nbytes for p in model().parameters())


def test_memory_and_bytes_of_a_step() -> None:
    whole, cut = (
        plan(model(), (4, 1), (16, 40), optimizer=torch.optim.AdamW, parameters=parameters)
        for parameters in ("whole", "cut")
    )
    for worker in cut.workers:
        assert worker.parameters + worker.gradients + worker.states < 1.1 * 4 * SIZE / 4
        assert 2 * 3 / 4 * SIZE < worker.received < 1.01 * 3 * 3 / 4 * SIZE  # the first layer is not gathered again
    assert max(w.memory for w in cut.workers) < max(w.memory for w in whole.workers)
    assert {"parameters: 0.weight, and more", "gradients: 0.weight, and more"} <= {layer.name for layer in cut.layers}
    ranking: Any = plan(model(), workers=4, input_shape=(16, 40), memory="30KB", optimizer=torch.optim.AdamW)
    assert "If parameters are cut (parameters='cut'), it needs" in str(ranking)


@pytest.mark.soak
def test_one_worker_stands_for_many() -> None:
    cut = plan(model(), (64, 1), (64, 40), parameters="cut")
    assert len(cut.workers) < 8
    assert not cut.exact


@workers(4, transports=("mpi",))
def test_a_real_step_receives_what_is_planned() -> None:
    P_x = gridwise.world().create_cartesian_topology_partition([4, 1])
    net = model()
    placed = gridwise.distribute(net, P_x, parameters="cut")
    planned, received = plan(model(), (4, 1), (16, 40), parameters="cut").worker(gridwise.world().rank), 0
    transport, move = gridwise.world().transport, gridwise.world().transport.move

    def counted(sends: Any, receives: Any, dtype: Any, *rest: Any) -> Any:
        nonlocal received
        received += sum(view.numel() * dtype.itemsize for _, views in receives for view in views)
        return move(sends, receives, dtype, *rest)

    transport.move = counted  # type: ignore[method-assign]
    try:
        for _ in range(2):
            received = 0
            placed(torch.ones(4, 40)).sum().backward()
            assert received == planned.received
    finally:
        del transport.move
