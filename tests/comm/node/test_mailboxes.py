"""Messages through shared memory: every one arrives, whole and in order, whoever is waited for first."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading

import pytest
import torch

from gridwise.comm.node import NodeError, futex, mailbox, mailboxes, segment
from gridwise.comm.node.mailboxes import Mailboxes, started
from gridwise.comm.node.segment import Offer
from gridwise.errors import MismatchError

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


def pair(processes: dict[int, int] | None = None) -> tuple[Mailboxes, Mailboxes]:
    """Two workers that share a segment, both in this thread."""
    offer = Offer.make(2)
    offer.close()
    mine = processes or dict.fromkeys((0, 1), os.getpid())
    return tuple(Mailboxes(offer.segment, {0: 0, 1: 1}, me, mine, False) for me in (0, 1))


def test_what_had_arrived_before_a_cut_is_delivered(monkeypatch):
    one, other = pair()
    x = torch.zeros(3)
    pending = one.post([], [(1, [x])], torch.float32)

    def sends_and_fails(*_: object) -> None:
        other.post([(0, [torch.ones(3)])], [], torch.float32)
        one.is_cut = True

    monkeypatch.setattr(futex, "wait", sends_and_fails)
    pending.wait()
    assert x.tolist() == [1, 1, 1]
    with pytest.raises(NodeError, match="cut"):
        one.post([(1, [x])], [], torch.float32)


@pytest.mark.parametrize(
    ("sent", "kind", "awaited", "text"),
    [
        (torch.ones(4), 0, torch.ones(5), r"a message of 16 bytes, where this worker waits for a message of 20 bytes"),
        (torch.ones(4), 3, torch.ones(4), r"a sum of 16 bytes, where this worker waits for a message of 16 bytes"),
        (torch.ones(0), 0, torch.ones(1), r"a message of 0 bytes"),
        (torch.ones(9), 0, torch.ones(5000), r"a message of 36 bytes, where this worker waits for a message of 4096"),
    ],
)
def test_what_was_not_meant_is_not_taken(sent, kind, awaited, text):
    one, two = pair()
    one.post([(1, [sent])], [], torch.float32, kind=kind)
    pending = two.post([], [(0, [awaited])], torch.float32)
    with pytest.raises(MismatchError, match=f"worker 0 sent {text}"):
        pending.wait()


def test_after_an_error_in_the_midst_nothing_more_is_sent_or_taken():
    one, two = pair()
    with pytest.raises(RuntimeError, match="meta"):
        one.post([(1, [torch.empty(3, device="meta")])], [], torch.float32)
    with pytest.raises(NodeError, match="an earlier call did not come to its end"):
        one.post([(1, [torch.zeros(3)])], [], torch.float32)
    y = torch.zeros(3)
    two.post([], [(0, [y])], torch.float32)
    assert not any(box.advance() for box in two._boxes.values())


def test_an_interrupt_of_a_wait_is_not_forgotten(monkeypatch):
    one, _ = pair()
    pending = one.post([], [(1, [torch.zeros(3)])], torch.float32)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(futex, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pending.wait()
    with pytest.raises(NodeError, match="KeyboardInterrupt"):
        one.post([], [(1, [torch.zeros(3)])], torch.float32)


def test_a_message_is_in_its_place_before_it_is_counted(monkeypatch):
    """Where processors reorder what they write: a fence is between the message and its count, at both ends."""
    one, two = pair()
    (out,), (into,) = one._boxes.values(), two._boxes.values()
    x, y, seen = torch.full((3,), 7.0), torch.zeros(3), []

    def fence() -> None:
        slot = out._slots_out.bytes(0).view(torch.float32)[:3].tolist()
        seen.append((slot, out._words[out._sent_at], y.tolist(), into._words[into._taken_at]))

    monkeypatch.setattr(futex, "NEEDS_FENCE", True)
    monkeypatch.setattr(futex, "fence", fence)
    one.post([(1, [x])], [], torch.float32)
    two.post([], [(0, [y])], torch.float32).wait()
    sevens, zeros = [7.0] * 3, [0.0] * 3
    before_count, after_ring, before_reading, after_reading, after_taking = seen
    assert before_count == (sevens, 0, zeros, 0)
    assert after_ring == before_reading == (sevens, 1, zeros, 0)
    assert after_reading == (sevens, 1, sevens, 0)
    assert after_taking == (sevens, 1, sevens, 1)


@pytest.mark.parametrize("needs", [False, True])
def test_the_fences_of_all_processors_can_be_called_here(monkeypatch, needs):
    monkeypatch.setattr(futex, "NEEDS_FENCE", needs)
    for _ in range(2):
        futex.fence()


def test_a_store_is_visible_before_the_word_that_answers_it_is_read(monkeypatch):
    """On every processor: a load may overtake a store, and the two workers would then miss each other."""
    one, two = pair()
    (out,), (into,) = one._boxes.values(), two._boxes.values()
    seen = []
    monkeypatch.setattr(futex, "NEEDS_FENCE", False)
    monkeypatch.setattr(futex, "fence", lambda: seen.append((two._words[two._bell_at], into._words[into._taken_at])))
    before = two._words[two._bell_at]
    one.post([(1, [torch.ones(3)])], [], torch.float32)
    two.post([], [(0, [torch.zeros(3)])], torch.float32).wait()
    (rung, _), (_, taken) = seen
    assert (rung, taken) == (out._ring, 1) != (before, 0)
    one.ring_sleepers()
    assert len(seen) == 3


def test_a_sender_that_fills_the_second_slot_meanwhile_is_woken(monkeypatch):
    """Whether it waits for a slot is looked at after the slot was freed, not before."""
    one, two = pair()
    (out,), (into,) = one._boxes.values(), two._boxes.values()
    one.post([(1, [torch.zeros(3)])], [], torch.float32)
    notified = []
    monkeypatch.setattr(into, "notify", lambda: notified.append(1))

    def late(view, part, add):
        one.post(
            [(1, [torch.ones(3)]), (1, [torch.ones(3)])], [], torch.float32
        )  # one fills the slot, one waits for it
        view.copy_(part)

    monkeypatch.setattr(mailbox, "put", late)
    two.post([], [(0, [torch.zeros(3)])], torch.float32).wait()
    assert notified
    assert len(out.outgoing) == 1


def test_only_a_sleeper_is_woken(monkeypatch):
    """Waking is a call of the kernel for every message; who is awake sees its doorbell."""
    one, two = pair()
    (out,) = one._boxes.values()
    woken = []
    monkeypatch.setattr(futex, "NEEDS_FENCE", False)
    monkeypatch.setattr(futex, "wake", woken.append)
    before = two._words[two._bell_at]
    one.post([(1, [torch.ones(3)])], [], torch.float32)
    assert two._words[two._bell_at] != before
    assert not woken
    two._words[two._asleep_at] = 1
    one.post([(1, [torch.ones(3)])], [], torch.float32)
    assert woken == [out._bell_address]


def test_one_that_was_dead_from_the_beginning_is_told_too(monkeypatch):
    monkeypatch.setattr(mailboxes, "LIFE_SECONDS", 0.01)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    one, _ = pair({0: os.getpid(), 1: child.pid})
    with pytest.raises(NodeError, match="the process of worker 1 is gone"):
        one.post([], [(1, [torch.zeros(3)])], torch.float32).wait()


def test_one_that_is_stopped_is_not_called_dead(monkeypatch):
    monkeypatch.setattr(mailboxes, "LIFE_SECONDS", 0.01)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    one, two = pair({0: os.getpid(), 1: child.pid})
    child.send_signal(signal.SIGSTOP)
    y = torch.zeros(3)
    pending = one.post([], [(1, [y])], torch.float32)
    threading.Timer(0.5, lambda: two.post([(0, [torch.ones(3)])], [], torch.float32)).start()
    pending.wait()
    assert y.tolist() == [1.0] * 3
    child.send_signal(signal.SIGCONT)
    child.communicate()


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex128, torch.float16, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("count", [0, 1, 255, 4097])
def test_every_dtype_of_every_length(dtype, count):
    one, two = pair()
    x = torch.arange(count * dtype.itemsize).to(torch.uint8).clamp(max=1).view(dtype)
    y = torch.zeros(count, dtype=dtype)
    sent = one.post([(1, [x, x[:0]])], [], dtype)
    thread = threading.Thread(target=sent.wait)
    thread.start()
    two.post([], [(0, [y, y[:0]])], dtype).wait()
    thread.join(60)
    assert torch.equal(x.view(torch.uint8), y.view(torch.uint8))


def test_no_view_at_all_is_a_message_too():
    one, two = pair()
    one.post([(1, [])], [], torch.float32)
    two.post([], [(0, [])], torch.float32).wait()


def test_who_waits_lets_the_messages_of_the_library_move_on():
    one, two = pair()
    y = torch.zeros(3)
    one.meanwhile = lambda: two.post([(0, [torch.ones(3)])], [], torch.float32)  # as if the library had brought it
    one.post([], [(1, [y])], torch.float32).wait()
    assert y.tolist() == [1.0] * 3
