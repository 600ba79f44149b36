"""Saving and loading while other workers do something else: one clear error on all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gridwise
from gridwise import checkpoint
from gridwise.errors import MismatchError
from gridwise.testing import workers


@workers(2)
@pytest.mark.parametrize("call", [checkpoint.save, checkpoint.async_save, checkpoint.load])
def test_one_worker_saves_or_loads_while_the_others_call_a_layer(tmp_path: Path, call: Callable[..., Any]) -> None:
    P = gridwise.world().create_cartesian_topology_partition((1, 1, 2))
    layer = gridwise.nn.DistributedConv1d(P, 1, 1, 3, padding=1)
    state = {"x": torch.ones(3)}
    path = tmp_path / "c"
    checkpoint.save(path, state)
    with pytest.raises(MismatchError, match="the workers called different operators") as caught:
        call(path, state) if P.rank == 0 else layer(torch.ones(1, 1, 4))
    text = str(caught.value)
    assert "worker 0: called saving" in text or "worker 0: called loading" in text
    assert "worker 1: called Distributed" in text
    assert checkpoint.load(path)["x"].tolist() == [1.0, 1.0, 1.0]


@workers(2)
def test_one_worker_saves_while_another_loads(tmp_path: Path) -> None:
    path = tmp_path / "c"
    state = {"x": torch.ones(3)}
    checkpoint.save(path, state)
    with pytest.raises(MismatchError, match="worker 1: called saving"):
        (checkpoint.save if gridwise.world().rank == 1 else checkpoint.load)(path, state)
