"""Loading into a state: what does not fit, other dtypes, tensors without memory, and how much memory it takes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import line, split
from crew import crew
from torch import nn
from training import Net, training

from gridwise import checkpoint
from gridwise.checkpoint import PerWorker
from gridwise.errors import CheckpointMismatch, CheckpointNotFound
from gridwise.partition import Partition


def test_errors_say_what_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, {"net": nn.Linear(3, 2), "step": 1, "list": [torch.ones(1)]})
    before = torch.full((2, 3), 9.0)
    cases: list[tuple[Any, str]] = [
        ({"net": {"weight": before, "other": torch.ones(1)}}, "'net/other' is not in the checkpoint"),
        ({"net": {"weight": torch.ones(3, 2)}}, r"global shape \[2, 3\] in the checkpoint, \[3, 2\]"),
        ({"net": {"weight": torch.ones(2, 3).double()}}, "float32 in the checkpoint, torch.float64"),
        ({"step": torch.ones(1)}, "plain value in the checkpoint"),
        ({"list": [torch.ones(1), torch.ones(1)]}, "2 items in `into`, 1 in the checkpoint"),
        ({"net": nn.Linear(3, 2, bias=False)}, "only in the checkpoint: 'net/bias'"),
        ({"net": nn.Sequential(nn.Linear(3, 2))}, "only in `into`: 'net/0.bias'"),
        ({"net": {"weight": torch.ones(1, 1).expand(2, 3)}}, "expanded"),
        ({"step": PerWorker(1)}, "saved as one value for all"),
        ({"opt": torch.optim.SGD(nn.Linear(1, 1).parameters())}, "belong to no module"),
        (3, "must be a dict"),
    ]
    for into, text in cases:
        with pytest.raises(CheckpointMismatch, match=text):
            checkpoint.load(path, into)
    assert torch.equal(before, torch.full((2, 3), 9.0))
    with pytest.raises(CheckpointNotFound, match="nothing exists there"):
        checkpoint.load(tmp_path / "no", {})
    with pytest.raises(CheckpointNotFound, match=r"no manifest\.json"):
        checkpoint.load(tmp_path, {})


def test_cast_converts(tmp_path: Path) -> None:
    x = torch.randn(40, 30, dtype=torch.float64)
    checkpoint.save(tmp_path / "c", {"x": x})
    into = {"x": torch.zeros(40, 30, dtype=torch.bfloat16)}
    checkpoint.load(tmp_path / "c", into, cast=True)
    assert torch.equal(into["x"], x.bfloat16())


def test_autograd_notices_that_a_saved_tensor_was_overwritten(tmp_path: Path) -> None:
    x = torch.ones(3)
    checkpoint.save(tmp_path / "c", {"x": x})
    y = (x * torch.ones(3, requires_grad=True)).sum()
    checkpoint.load(tmp_path / "c", {"x": x})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_parameters_on_the_meta_device_are_made_only_in_part(tmp_path: Path) -> None:
    whole = torch.randn(8, 5)
    bias = torch.randn(8)
    checkpoint.save(tmp_path / "c", {"weight": whole, "bias": bias})

    def loads(P: Partition) -> None:
        net = nn.Linear(5, 8, device="meta")
        layout = line(P, (8, 5))
        block = layout.block(P.transport.rank)
        net.weight = split(torch.empty(8, 5, device="meta"), layout, P.transport.rank)
        checkpoint.load(tmp_path / "c", net, P)
        assert torch.equal(net.weight.detach(), whole[block.slices])
        assert net.weight.layout == layout
        assert net.weight.requires_grad
        assert isinstance(net.bias, nn.Parameter)
        assert torch.equal(net.bias.detach(), bias)

    crew(3, loads)


def test_a_deferred_module_is_made_by_the_load(tmp_path: Path) -> None:
    deferring = pytest.importorskip("gridwise.deferred_init")
    state = training(torch.optim.Adam)
    checkpoint.save(tmp_path / "c", {"net": state["net"]})
    net = deferring.deferred_init(Net)
    with pytest.raises(CheckpointMismatch, match="deferred"):
        checkpoint.save(tmp_path / "d", {"net": net})
    before = torch.get_rng_state()
    checkpoint.load(tmp_path / "c", {"net": net})
    assert torch.equal(torch.get_rng_state(), before)  # nothing was initialised
    assert not deferring.is_deferred(net)
    assert net.tied is net.body[2].weight
    for key, value in state["net"].named_parameters():
        assert torch.equal(net.get_parameter(key), value)


def test_a_load_needs_little_memory_besides_the_state(tmp_path: Path) -> None:
    """In a program of its own: 200 MiB are saved and loaded in place, the largest resident size grows by less than 64."""
    program = textwrap.dedent("""
        import resource, sys, torch
        from gridwise import checkpoint
        state = {f"t{i}": torch.full((5_000_000,), float(i)) for i in range(10)}
        checkpoint.save(sys.argv[1] + "/first", {"x": torch.ones(10)})
        checkpoint.load(sys.argv[1] + "/first")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        checkpoint.save(sys.argv[1] + "/c", state)
        saved = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for x in state.values():
            x.zero_()
        checkpoint.load(sys.argv[1] + "/c", state)
        loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert all((x == i).all() for i, x in enumerate(state.values()))
        assert saved - before < 16 << 10, (before, saved)
        assert loaded - before < 64 << 10, (before, loaded)
    """)
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=120)
