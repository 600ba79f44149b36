"""Messages through shared memory: every one arrives, whole and in order, whoever is waited for first."""

from __future__ import annotations

import random
import subprocess
import sys
import threading

import pytest
import torch

from gridwise.comm.node import NodeError, mailboxes, segment
from gridwise.comm.node.mailboxes import Mailboxes, started
from gridwise.comm.node.segment import Offer

from .crew import crew


@pytest.fixture(autouse=True)
def small_slots(monkeypatch):
    monkeypatch.setattr(segment, "CHUNK", 4096)


@pytest.mark.parametrize("seed", range(6))
def test_random_messages_arrive_whole_and_in_order(seed):
    program = random.Random(seed)
    n = program.randint(2, 4)
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    rounds = []
    for _ in range(12):
        chosen = program.sample(pairs, program.randint(1, len(pairs)))
        dtype = program.choice([torch.float32, torch.float64, torch.uint8, torch.int64])
        sizes = {pair: program.choice([0, 1, 7, 500, 4097, 20_000]) for pair in chosen}
        rounds.append((dtype, sizes, program.random() < 0.5))

    def value(turn: int, source: int, target: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        return (torch.arange(count) * 31 + turn * 7 + source * 3 + target).to(dtype)

    def body(node, rank):
        checks, open_ = [], []
        for turn, (dtype, sizes, later) in enumerate(rounds):
            out = [(b, [value(turn, a, b, size, dtype)]) for (a, b), size in sizes.items() if a == rank]
            into = [(a, [torch.zeros(size, dtype=dtype)]) for (a, b), size in sizes.items() if b == rank]
            open_.append(node.post(out, into, dtype))
            checks += [(turn, a, view, dtype) for a, (view,) in into]
            if not later:
                while open_:
                    open_.pop().wait()  # the last first
        while open_:
            open_.pop().wait()
        for turn, source, view, dtype in checks:
            assert torch.equal(view, value(turn, source, rank, view.numel(), dtype))

    crew(n, body)


def test_views_of_any_strides_are_copied_or_added_in_place():
    whole = torch.arange(4000.0).view(40, 100)

    def body(node, rank):
        x, sums = torch.zeros(40, 100), torch.ones(40, 100, dtype=torch.float64)
        views = [whole[3:9, ::2], whole.t()[5:50]]
        for target, add in (([x[3:9, ::2], x.t()[5:50]], False), ([sums[3:9, ::2], sums.t()[5:50]], True)):
            node.post([(1 - rank, views)], [(1 - rank, target)], torch.float32, add).wait()
        assert torch.equal(x[3:9, ::2], whole[3:9, ::2])
        assert torch.equal(x.t()[5:50], whole.t()[5:50])
        expected = torch.ones(40, 100, dtype=torch.float64)
        expected[3:9, ::2] += whole[3:9, ::2]
        expected.t()[5:50] += whole.t()[5:50]
        assert torch.equal(sums, expected)

    crew(2, body)


def test_counts_of_messages_may_overflow():
    offer = Offer.make(2)
    offer.close()
    words, layout = offer.segment.words, offer.segment.layout
    for place in (layout.sent(0, 1), layout.taken(0, 1), layout.sent(1, 0), layout.taken(1, 0)):
        words[place // 4] = 0xFFFFFFFE
    boxes = [Mailboxes(offer.segment, {0: 0, 1: 1}, me, {0: 1, 1: 1}, False) for me in (0, 1)]
    for k in range(10):
        y = torch.zeros(3)
        sent = boxes[0].post([(1, [torch.full((3,), float(k))])], [], torch.float32)
        boxes[1].post([], [(0, [y])], torch.float32).wait()
        sent.wait()
        assert y.tolist() == [k] * 3


def test_a_worker_that_waits_for_the_dead_is_told(monkeypatch):
    monkeypatch.setattr(mailboxes, "LIFE_SECONDS", 0.01)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert started(child.pid) is not None
    offer = Offer.make(2)
    offer.close()
    boxes = Mailboxes(offer.segment, {0: 0, 1: 1}, 0, {0: 1, 1: child.pid}, False)
    pending = boxes.post([], [(1, [torch.zeros(3)])], torch.float32)
    threading.Timer(0.3, child.communicate).start()
    with pytest.raises(NodeError, match="the process of worker 1 is gone"):
        pending.wait()
    assert started(child.pid) is None


def test_a_cut_frees_whoever_waits_and_nothing_begins_after_it():
    offer = Offer.make(2)
    offer.close()
    boxes = Mailboxes(offer.segment, {0: 0, 1: 1}, 0, {0: 1, 1: 1}, True)
    pending = boxes.post([], [(1, [torch.zeros(3)])], torch.float32)
    threading.Timer(0.2, lambda: setattr(boxes, "is_cut", True)).start()
    with pytest.raises(NodeError, match="cut"):
        pending.wait()
    with pytest.raises(NodeError, match="cut"):
        boxes.post([(1, [torch.zeros(3)])], [], torch.float32)
