"""TAGI networks are ordinary modules: deferred initialisation, checkpoints and `describe` take them as they are."""

from __future__ import annotations

import torch

import gridwise
from gridwise import checkpoint, tagi
from gridwise.deferred_init import deferred_init, is_deferred, materialize_module


def network() -> tagi.nn.Sequential:
    nn = tagi.nn
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, in_width=8, in_height=8),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AvgPool2d(2, 2),
        nn.Linear(64, 3),
    )


def test_a_deferred_network_becomes_the_eager_one_bit_for_bit():
    torch.manual_seed(4)
    eager = network()
    torch.manual_seed(4)
    deferred = deferred_init(network)
    assert is_deferred(deferred)
    materialize_module(deferred)
    for name, value in eager.state_dict().items():
        assert torch.equal(deferred.state_dict()[name], value), name
    x = torch.rand(2, 64)
    for mine, theirs in zip(deferred(x), eager(x), strict=True):
        assert torch.equal(mine, theirs)


def test_a_checkpoint_keeps_means_variances_and_running_statistics(tmp_path):
    torch.manual_seed(4)
    trained, fresh = network(), network()
    trained(torch.rand(5, 64))
    checkpoint.save(tmp_path / "net", {"net": trained})
    checkpoint.load(tmp_path / "net", into={"net": fresh})
    for name, value in trained.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value), name


def test_describe_lists_means_and_variances():
    names = {row.name for row in gridwise.describe(network()).rows}
    assert {"Conv2d.0.mu_w", "Conv2d.0.var_w", "BatchNorm2d.1.running_mean", "Linear.4.mu_b", "Linear.4.var_b"} <= names
