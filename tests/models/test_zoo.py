"""A handful of the zoo's models, which need no library besides torch, on real workers; `make zoo` runs all of them."""

from __future__ import annotations

import random

from zoo.check import check

import gridwise
from gridwise.testing import workers

HANDFUL = random.Random(17).sample(["espcn", "edsr", "dncnn", "convlstm_zeros", "simple_fft", "vae_deterministic"], 3)


@workers(4, transports=("gloo",))
def test_a_handful_equals_the_sequential_models() -> None:
    for name in HANDFUL:
        found = check(f"classics.{name}")
        if gridwise.world().rank == 0:  # which has compared
            assert (found["outcome"], found["gathers"]) == ("equal", []), found
            assert found["flops"] <= 1.3 / 4, found
