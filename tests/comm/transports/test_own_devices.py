"""Whether nccl is used is decided by all workers together, from the devices that each of them sees."""

from __future__ import annotations

import json

import pytest
import torch

from gridwise.comm.transports import own_devices


@pytest.mark.parametrize(
    ("visible", "enough"),
    [
        ([["a", "b"], ["a", "b"]], True),
        ([["a", "b"], ["a", "b"], ["a", "b"]], False),
        ([["a"], ["b"]], True),  # srun --gpus-per-task=1
        ([["a"], ["a"]], False),
        ([["a", "b"], ["c", "d"]], True),
        ([["a", "b"], ["a", "b"], ["c"]], True),  # machines with different numbers of devices
        ([["a", "b"], ["a", "b"], ["c"], ["c"]], False),
        ([["a", "b", "c"], ["a"], ["a"]], False),
        ([["a", "b"], ["a"]], True),
        ([["a"], []], False),
        ([["a"]], True),
    ],
)
def test_every_worker_needs_a_device_that_no_other_uses(visible, enough):
    assert own_devices.are_enough(visible) == enough


def test_workers_that_see_different_devices_decide_alike(monkeypatch):
    seen = [["a", "b"], []]

    class Pretended:
        everyone = (0, 1)

        def gather_bytes(self, data, team, what):
            assert json.loads(data) in seen
            return [json.dumps(devices).encode() for devices in seen]

    for mine in seen:
        monkeypatch.setattr(own_devices, "_visible", lambda mine=mine: mine)
        assert not own_devices.can_use_nccl(Pretended())


def test_devices_that_cannot_be_used_do_not_count(monkeypatch):
    """An error on one worker would leave the others waiting for what it sees."""

    def fails(index):
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    monkeypatch.setattr(own_devices.dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", fails)
    assert own_devices._visible() == []
