"""Switches of earlier versions do nothing, and say so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import gridwise
from gridwise import nn
from gridwise.testing import workers


@workers(2)
@pytest.mark.parametrize("switch", [gridwise.overlap, nn.overlap, nn.keep_fetched])
def test_a_switch_without_effect(switch):
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    torch.manual_seed(0)
    layer, x = nn.DistributedConv2d(P_x, 3, 4, 3, padding=1), torch.randn(1, 3, 6, 5)
    expected = layer(x)
    on = gridwise.world().rank == 0  # workers may differ in it: it is no part of what they agree on
    with pytest.warns(
        FutureWarning, match=rf"`gridwise\.nn\.{switch.__name__}` has no effect.*\n.*fix: delete"
    ) as said:
        body = switch(on)
    assert said[0].filename == __file__
    with body:
        assert torch.equal(layer(x), expected)


def test_variables_without_effect():
    variables = ("GRIDWISE_OVERLAP", "GRIDWISE_KEEP_FETCHED")
    environment = {**os.environ, **dict.fromkeys(variables, "on")}
    command = [sys.executable, "-c", "import gridwise"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    for variable in variables:
        assert f"FutureWarning: `{variable}` (='on') has no effect any more" in done.stderr
