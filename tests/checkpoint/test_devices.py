"""Checkpoints of CUDA tensors: saved from the device, in the background too, and loaded onto it, from it and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import line, split
from crew import crew
from torch import Tensor, nn

from gridwise import checkpoint
from gridwise.checkpoint.writing import staging
from gridwise.errors import CheckpointDamaged
from gridwise.partition import Partition, world

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")

HOST, DEVICE = "cpu", "cuda"


def values() -> dict[str, Tensor]:
    """On the host: of many dtypes, more than a chunk, nothing at all, turned, strided, lazily conjugated."""
    g = torch.Generator().manual_seed(3)
    return {
        "large": torch.randn(700, 901, generator=g),
        "small": torch.randn(5, generator=g, dtype=torch.float64),
        "half": torch.randn(33, 2, generator=g).half(),
        "brain": torch.randn(7, generator=g).bfloat16(),
        "bytes": torch.arange(200, dtype=torch.uint8),
        "flag": torch.tensor(True),
        "none": torch.zeros(0, 3),
        "turned": torch.randn(600, 800, generator=g).t(),
        "strided": torch.arange(20)[::3],
        "complex": torch.randn(9, generator=g, dtype=torch.complex64).conj(),
    }


def on(device: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: x.to(device) for key, x in state.items()}


def check_equal(found: dict[str, Tensor], device: str) -> None:
    for key, expected in values().items():
        assert found[key].device.type == device, key
        assert torch.equal(found[key].cpu(), expected), key


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(("first", "second"), [(DEVICE, DEVICE), (DEVICE, HOST), (HOST, DEVICE)])
def test_from_one_device_to_another(tmp_path: Path, first: str, second: str, background: bool) -> None:
    state = on(first, values())
    if background:
        checkpoint.async_save(tmp_path / "c", state).wait()
    else:
        checkpoint.save(tmp_path / "c", state)
    checkpoint.verify(tmp_path / "c")
    check_equal(checkpoint.load(tmp_path / "c"), HOST)
    into = {key: torch.zeros_like(x) for key, x in on(second, values()).items()}
    places = {key: x.data_ptr() for key, x in into.items()}
    checkpoint.load(tmp_path / "c", into)
    check_equal(into, second)
    assert places == {key: x.data_ptr() for key, x in into.items()}


def test_the_bytes_are_those_of_the_host(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "host", values())
    checkpoint.save(tmp_path / "device", on(DEVICE, values()))
    host, device = (checkpoint.read_manifest(tmp_path / name).tensors for name in ("host", "device"))
    assert host == device


def test_what_is_saved_in_the_background_is_the_moment_of_the_call(tmp_path: Path) -> None:
    """The device is still computing what is to be saved, on a stream of its own, and is changed at once afterwards."""
    factor = torch.eye(2048, device=DEVICE)
    x = torch.zeros(2048, 2048, device=DEVICE)
    small = [torch.zeros(3, device=DEVICE) for _ in range(50)]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for step in range(1, 4):
            pending = checkpoint.async_save(tmp_path / f"{step}", {"x": x, "small": small, "n": step})
            x.add_(1)
            for _ in range(20):
                x = x @ factor
            for each in small:
                each.fill_(step)
            pending.wait()
    for step in range(1, 4):
        found = checkpoint.load(tmp_path / f"{step}")
        assert torch.equal(found["x"], torch.full((2048, 2048), float(step - 1)))
        assert all(torch.equal(each, torch.full((3,), float(step - 1))) for each in found["small"])


def test_memory_for_the_copy_is_pinned_and_used_again(tmp_path: Path) -> None:
    transport = world().transport
    staging.forget(transport)
    checkpoint.async_save(tmp_path / "c", {"x": torch.ones(5000)}).wait()
    assert not staging._memory[transport].is_pinned()
    checkpoint.async_save(tmp_path / "c", {"x": torch.ones(5000, device=DEVICE)}).wait()
    assert staging._memory[transport].is_pinned()
    place = staging._memory[transport].data_ptr()
    checkpoint.async_save(tmp_path / "c", {"x": torch.zeros(100, device=DEVICE), "y": torch.ones(3)}).wait()
    assert staging._memory[transport].data_ptr() == place
    staging.forget(transport)


def training(device: str, fused: bool) -> tuple[dict[str, Any], Any]:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).to(device)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.1, fused=fused)
    generator = torch.Generator(device).manual_seed(5)

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = net(torch.randn(8, 4, device=device, generator=generator)).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        return losses

    return {"net": net, "optim": optimiser, "rng": generator}, train


@pytest.mark.parametrize("fused", [False, True])
def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path: Path, fused: bool) -> None:
    state, train = training(DEVICE, fused)
    train(3)
    checkpoint.save(tmp_path / "c", state)
    expected = train(4)
    again, train_again = training(DEVICE, fused)
    checkpoint.load(tmp_path / "c", again)
    assert all(x.is_cuda for each in again["optim"].state.values() for x in each.values() if x.dim())
    assert train_again(4) == expected
    host = training(HOST, False)[0]
    del host["rng"]  # a generator of the host takes no state of one of the device
    checkpoint.load(tmp_path / "c", host)
    assert all(not x.is_cuda for x in host["net"].state_dict().values())


@pytest.mark.parametrize("m", [1, 3])
def test_blocks_on_the_device_go_to_other_workers(tmp_path: Path, m: int) -> None:
    whole = torch.arange(7 * 5.0).view(7, 5)

    def saves(P: Partition) -> None:
        state = {"w": split(whole.to(DEVICE), line(P, (7, 5)), P.transport.rank), "same": whole.to(DEVICE)}
        checkpoint.save(tmp_path / "c", state, P)

    def loads(P: Partition) -> None:
        into = {"w": split(torch.zeros(7, 5, device=DEVICE), line(P, (7, 5), dim=1), P.transport.rank)}
        checkpoint.load(tmp_path / "c", into, P)
        assert into["w"].is_cuda
        block = line(P, (7, 5), dim=1).block(P.transport.rank)
        assert torch.equal(into["w"].detach().cpu(), whole[block.slices])

    crew(2, saves)
    crew(m, loads)


def test_damage_is_noticed_before_the_device_is_changed(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", {"x": torch.ones(3_000_000, device=DEVICE)})
    (file,) = (tmp_path / "c").glob("data-*/*.safetensors")
    with file.open("r+b") as opened:
        opened.seek(-1, 2)
        opened.write(b"!")
    into = {"x": torch.zeros(3_000_000, device=DEVICE)}
    with pytest.raises(CheckpointDamaged, match="checksum"):
        checkpoint.load(tmp_path / "c", into)
    assert not into["x"].any()
