"""Deferred construction equals eager construction bit for bit, in every order of materialisation."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from gridwise.deferred_init import deferred_init, is_deferred, materialize_module, materialize_tensor

from .cases import CASES
from .equality import assert_same, tensors_of

pytestmark = pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
SEED = 1234


def in_module_order(model: nn.Module) -> None:
    materialize_module(model)


def reversed_one_by_one(model: nn.Module) -> None:
    for _, tensor in reversed(list(tensors_of(model))):
        materialize_tensor(tensor)
    materialize_module(model)


def random_subset_first(model: nn.Module) -> None:
    chooser = random.Random(3)
    chosen = {m for m in model.modules() if chooser.random() < 0.5}
    materialize_module(model, check_fn=chosen.__contains__)
    names = list(tensors_of(model))
    for _, tensor in chooser.sample(names, len(names) // 2):
        materialize_tensor(tensor)
    materialize_module(model)


@pytest.mark.parametrize("order", [in_module_order, reversed_one_by_one, random_subset_first])
@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name: str, order: Callable[[nn.Module], None]) -> None:
    torch.manual_seed(SEED)
    torch.randn(3)  # not at the beginning of the generator's words, and with half a pair left over
    eager = CASES[name]()
    state = torch.get_rng_state()

    torch.manual_seed(SEED)
    torch.randn(3)
    model = deferred_init(CASES[name])
    assert torch.equal(torch.get_rng_state(), state), "the generator must end where eager construction leaves it"
    assert is_deferred(model) == bool(list(tensors_of(model)))

    torch.manual_seed(99)  # materialising must neither use nor move the generator
    torch.randn(1)
    before = torch.get_rng_state()
    order(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert not is_deferred(model)
    assert_same(eager, model)
