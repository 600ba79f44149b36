"""The generator's arithmetic against drawing: jump-ahead, advancing, counting, and a torch that is not as known."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gridwise.deferred_init import deferred_init, materialize_module, materialize_shard
from gridwise.deferred_init.random import draws, fills, generator, jump


def test_the_characteristic_polynomial_has_the_published_degree_and_weight() -> None:
    p = jump.characteristic_polynomial()
    assert p.bit_length() == 19938
    assert p.bit_count() == 135


@pytest.mark.parametrize("blocks", [1, 2, 31, 32, 33, 1000, 54321])
def test_jumping_equals_stepping(blocks: int) -> None:
    start = np.random.MT19937(blocks)
    words = start.state["state"]["key"]
    expected = np.random.MT19937(blocks)
    expected.random_raw(624 * blocks, output=False)
    assert np.array_equal(jump.jump(words, blocks), expected.state["state"]["key"])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**63), before=st.integers(0, 1300), n=st.integers(0, 3000))
def test_advancing_equals_drawing(seed: int, before: int, n: int) -> None:
    g = torch.Generator().manual_seed(seed)
    torch.empty(before).uniform_(generator=g)
    start = g.get_state()
    torch.empty(n).uniform_(generator=g)
    assert torch.equal(generator.advanced(start, n), g.get_state())


def test_a_long_advance_jumps_and_equals_drawing() -> None:
    g = torch.Generator().manual_seed(8)
    torch.empty(100).uniform_(generator=g)
    start = g.get_state()
    n = generator.JUMP_FROM + 12_345
    torch.empty(n).uniform_(generator=g)
    assert torch.equal(generator.advanced(start, n), g.get_state())


def test_a_length_that_comes_again_is_jumped(monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = []
    monkeypatch.setattr(generator, "_recent", deque(maxlen=2))
    monkeypatch.setattr(jump, "jump", lambda words, blocks: jumps.append(blocks) or words)
    start, n = torch.Generator().manual_seed(8).get_state(), generator.JUMP_AGAIN_FROM
    for length in (n, 2, n, n + 700, n + 1400, n):  # the last time, it is forgotten
        generator.advanced(start, length)
    assert jumps == [(jump.N + n - 1) // jump.N]


def test_this_torch_is_as_known() -> None:
    assert generator.layout_is_known()
    assert draws.counts_are_known()
    assert fills.fills_are_known()


def test_on_an_unknown_torch_the_slow_way_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(40, 30), nn.Embedding(5, 3), nn.Linear(3, 2))

    torch.manual_seed(0)
    eager = build()
    end = torch.get_rng_state()
    monkeypatch.setattr("gridwise.deferred_init.random.streams.counts_are_known", lambda: False)
    monkeypatch.setattr("gridwise.deferred_init.blocks.fills_are_known", lambda: False)
    torch.manual_seed(0)
    model = deferred_init(build)
    assert torch.equal(torch.get_rng_state(), end)
    block = materialize_shard(model[0].weight, (slice(3, 9), slice(5, 40)))
    assert torch.equal(block, eager[0].weight[3:9, 5:40])
    materialize_module(model)
    assert all(torch.equal(a, b) for a, b in zip(eager.parameters(), model.parameters(), strict=True))


def test_a_kernel_that_draws_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "LANES", 8)
    assert not draws._count_holds("normal", 20, torch.float32, True)
    monkeypatch.undo()
    monkeypatch.setattr(fills, "LANES", 8)
    assert not fills._fill_holds("normal", 37, torch.float32)
