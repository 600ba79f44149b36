"""Rules are checked for functions and for modules alike."""

from __future__ import annotations

import pytest
import torch

from gridwise.testing import check_rule, workers


@workers(1, 2)
@pytest.mark.parametrize("function", [torch.sin, torch.nn.Linear(4, 3).double()], ids=["function", "module"])
def test_what_has_a_rule_passes(function) -> None:
    check_rule(function, torch.linspace(0, 2, 24, dtype=torch.float64).reshape(6, 4))
