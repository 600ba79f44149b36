"""A checkpoint of tensors, values and a value for each worker, to be damaged or forged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gridwise import checkpoint


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "c"
    state = {
        "a": torch.randn(4, 3),
        "b": {"x": torch.arange(5)},
        "large": torch.randn(3 << 18),
        "n": {1: torch.ones(1)},
    }
    checkpoint.save(
        path, state | {"w": checkpoint.PerWorker(3), "v": {"inf": float("inf"), "c": complex(1, float("inf"))}}
    )
    return path
