"""The file that the page on huge inputs asks to save predicts on four workers what the function predicts alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from pages import files
from torch import nn

import gridwise
from gridwise.testing import workers

pytest.importorskip("zarr", reason="pip install -e '.[data]'")


@workers(4, transports=("gloo",))
def test_predict_writes_what_the_function_gives(tmp_path: Path) -> None:
    import zarr

    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.InstanceNorm3d(4), nn.ReLU(), nn.Conv3d(4, 3, 1))
    models = ModuleType("models")
    models.segment = lambda scan: network(scan.float()).argmax(1).to(torch.uint8)
    scans = np.random.default_rng(0).random((2, 9, 11, 10), dtype=np.float32)
    os.chdir(tmp_path)
    world = gridwise.world()
    if world.rank == 0:
        zarr.save_array("scans.zarr", scans)
    world.barrier()
    sys.modules["models"] = models
    try:
        exec(compile(files("huge-inference")["predict.py"], "predict.py", "exec"), {"__name__": "__main__"})
    finally:
        del sys.modules["models"]
    with torch.no_grad():
        alone = [models.segment(torch.from_numpy(scan)[None, None])[0] for scan in scans]
    assert len(torch.stack(alone).unique()) > 1
    np.testing.assert_array_equal(zarr.open_array("labels.zarr", mode="r")[:], torch.stack(alone).numpy())
