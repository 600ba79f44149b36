"""Which device a worker gets, by what its launcher says."""

from __future__ import annotations

import pytest
import torch

import gridwise
from gridwise.comm.launching import local_device
from gridwise.comm.launching.local_device import local_rank
from gridwise.comm.settings import LOCAL_RANKS
from gridwise.errors import TransportError
from gridwise.testing import workers


@pytest.mark.parametrize("name", LOCAL_RANKS)
def test_every_launcher_is_understood(name):
    assert local_rank({name: "3"}) == 3


def test_mpiexec_and_torchrun_count_before_the_slurm_around_them():
    assert local_rank({"SLURM_LOCALID": "0", "MPI_LOCALRANKID": "2"}) == 2
    assert local_rank({"SLURM_LOCALID": "0", "LOCAL_RANK": "1"}) == 1


def test_without_a_launcher_it_is_0_and_one_of_several_must_know():
    assert local_rank({}) == 0
    with pytest.raises(TransportError, match="set LOCAL_RANK"):
        local_rank({"RANK": "1", "WORLD_SIZE": "2"})


@workers(2)
def test_the_launchers_of_the_tests_tell():
    assert local_rank() == gridwise.world().rank


def test_devices_are_shared_out(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for rank, index in ((0, 0), (1, 1), (2, 0), (5, 1)):
        monkeypatch.setattr(local_device, "local_rank", lambda rank=rank: rank)
        assert gridwise.device() == torch.device("cuda", index)
    assert chosen == [torch.device("cuda", i) for i in (0, 1, 0, 1)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gridwise.device() == torch.device("cpu")
