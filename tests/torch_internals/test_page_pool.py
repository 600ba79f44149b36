"""The pool of pages: tensors keep their numbers, freed memory is used again, and a budget holds."""

from __future__ import annotations

import gc
import random
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import pytest
import torch
from torch import Tensor

from gridwise import compiling
from gridwise.torch_internals import page_pool as module
from gridwise.torch_internals.page_pool import beside_the_pool, page_pool, report

MIB = 1 << 20
needs_compiler = pytest.mark.skipif(compiling.compiler() is None, reason="no C++ compiler")


def _anonymous() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("RssAnon"))


def _filled(size: int, number: float) -> Tensor:
    return torch.full((size // 4,), number, device="cpu")


@needs_compiler
def test_freed_memory_is_used_again() -> None:
    with page_pool(16 * MIB) as is_there:
        assert is_there
        first = _filled(3 * MIB, 1.0)
        place = first.data_ptr()
        del first
        assert _filled(3 * MIB, 2.0).data_ptr() == place
    assert report()[1] == 0, "nothing is kept for later"


@needs_compiler
@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_random_sizes_keep_their_numbers_within_the_budget(seed: int) -> None:
    """Blocks come and go; what is kept of freed ones, and put together anew, never exceeds the budget."""
    choose, budget, held = random.Random(seed), 24 * MIB, dict[int, Tensor]()
    gc.collect()
    with page_pool(budget):
        report()
        before, most = _anonymous(), 0
        for number in range(600):
            size = choose.choice((70_000, 333_333, 1_500_000, 2_500_000, 5_000_000, choose.randrange(1 << 16, 1 << 22)))
            while held and sum(x.nbytes for x in held.values()) + size > budget * 3 // 4:
                own = choose.choice(list(held))
                assert bool((held[own] == own).all()), "somebody else has written here"
                del held[own]
            held[number] = _filled(size, float(number))
            in_use, kept = report()
            assert kept + sum(x.nbytes for x in held.values()) <= budget
            assert in_use <= budget
            most = max(most, _anonymous() - before)
        assert most < budget + 4 * MIB
    assert all(bool((x == number).all()) for number, x in held.items()), "what outlives the pool stays"
    held.clear()
    gc.collect()
    assert _anonymous() - before < 4 * MIB, "and is given back when it is freed"


@needs_compiler
def test_tensors_may_come_from_outside_and_go_elsewhere() -> None:
    outside = _filled(2 * MIB, 1.0)
    with page_pool(8 * MIB):
        del outside  # it was never the pool's
        made = [_filled(2 * MIB, 3.0)]
        elsewhere = Thread(target=made.clear)
        elsewhere.start()
        elsewhere.join()
        with beside_the_pool():
            report()
            beside = _filled(2 * MIB, 4.0)
            assert report()[0] == 0
        grown = _filled(MIB, 5.0).resize_(MIB)
        assert bool((grown[: MIB // 4] == 5.0).all())
    assert bool((beside == 4.0).all())


@needs_compiler
def test_other_threads_are_left_alone() -> None:
    with page_pool(8 * MIB), ThreadPoolExecutor(1) as others:
        report()
        others.submit(_filled, 4 * MIB, 1.0).result()
        assert report()[0] == 0


@needs_compiler
def test_several_calls_have_the_sum_of_their_budgets() -> None:
    def call(number: int) -> bool:
        with page_pool(8 * MIB):
            for _ in range(50):
                x, y = _filled(3 * MIB, number), _filled(MIB, -number)
                if not bool((x == number).all()) or not bool((y == -number).all()):
                    return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(call, range(1, 9)))
    assert report()[1] == 0


@needs_compiler
def test_gradients_of_convolutions_are_those_without_a_pool() -> None:
    """oneDNN takes and frees its buffers by the pool, too."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 16, 64, 64, requires_grad=True), torch.randn(32, 16, 3, 3, requires_grad=True)
    expected = torch.autograd.grad(torch.conv2d(x, w).square().sum(), (x, w))
    with page_pool(4 * MIB):
        found = torch.autograd.grad(torch.conv2d(x, w).square().sum(), (x, w))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_without_a_compiler_there_is_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    monkeypatch.setattr(module, "cached", lambda key: None)
    module._library.cache_clear()
    try:
        with page_pool(MIB) as is_there, beside_the_pool():
            assert not is_there
    finally:
        module._library.cache_clear()
