"""Positions in streams of random numbers, and generators that advance along them although nothing is drawn.

A *stream* is everything a generator would draw from some state on. A *mark* is the position at which an operator starts
to draw, so that the operator can be run again at any time, in any order, with the same numbers. While recording, the
default CPU generator does not move and a `DrawCounter` counts what would have been drawn; `settle` then advances the
generator to where eager construction would have left it. Code in a constructor that uses the generator
(`torch.get_rng_state`, `fork_rng`, `torch.manual_seed`, ...) goes through `WatchedGenerator`, which settles first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from gridwise.deferred_init.random.draws import Kind, counts_are_known, draw_count
from gridwise.deferred_init.random.generator import (
    advanced,
    generator_at,
    has_sample,
    is_seeded,
    with_sample_of,
    without_sample,
)
from gridwise.errors import DeferredInitError
from gridwise.torch_internals.modes import without_modes
from gridwise.torch_internals.tensors import default_generator, generator_key

DEFAULT = default_generator  # the real one, even while `torch.default_generator` is replaced
GENERATOR_LOCK = threading.RLock()  # held to read or move the default generator: several threads may materialise
AT_START = -1  # a `sample_at`: the left-over normal sample is that of the stream's first state


class Stream:
    """All draws from one state on."""

    def __init__(self, start: Tensor) -> None:
        self.start = start
        self._known = [(0, start)] * 2  # cached (position, state): the last one asked for, the last one drawn to

    def first_sample(self) -> int | None:
        return AT_START if has_sample(self.start) else None

    def state_at(self, draws: int, sample_at: int | None) -> Tensor:
        """The state after `draws` draws, with the left-over normal sample of the pair drawn at `sample_at`."""
        if draws == 0 and sample_at == self.first_sample():
            return self.start
        state = self.words_at(draws)
        if sample_at is None:
            return without_sample(state)
        return with_sample_of(state, self.start if sample_at == AT_START else self._after_pair(sample_at))

    def words_at(self, draws: int) -> Tensor:
        known, state = max(
            (place for place in self._known if place[0] <= draws), key=lambda place: place[0], default=(0, self.start)
        )
        state = advanced(state, draws - known)
        self._known[0] = (draws, state)
        return state

    def _after_pair(self, draws: int) -> Tensor:
        pair = generator_at(without_sample(advanced(self.start, draws)))
        torch.empty(1, dtype=torch.float64, device="cpu").normal_(generator=pair)
        return pair.get_state()

    def reached(self, draws: int, state: Tensor) -> None:
        """Cache the state after `draws` draws, which a caller has reached by drawing."""
        self._known[1] = (draws, state)


@dataclass(frozen=True, slots=True)
class Mark:
    """Where in a stream an operator starts to draw."""

    stream: Stream
    draws: int
    sample_at: int | None
    end: int | None = None  # draws after the operator, if known
    device: torch.device | None = None  # None: the CPU

    def state(self) -> Tensor:
        if self.device is not None:
            return self.stream.start
        return self.stream.state_at(self.draws, self.sample_at)


class DrawCounter:
    """Counts the draws that a generator would have made, without moving it."""

    def __init__(self, generator: torch.Generator = DEFAULT) -> None:
        self.generator = generator
        self._open(generator.get_state())

    def _open(self, state: Tensor) -> None:
        self.stream = Stream(state)
        self.draws = 0
        self.sample_at = self.stream.first_sample()

    def count(self, kind: Kind, n: int, dtype: torch.dtype, contiguous: bool) -> Mark | None:
        """Count the draws of an operator; if their number is unknown, settle the generator and return None."""
        with GENERATOR_LOCK:
            self.resync()
            count = draw_count(kind, n, dtype, contiguous, self.sample_at is not None) if counts_are_known() else None
            if count is None:
                self.settle()
                return None
            mark = Mark(self.stream, self.draws, self.sample_at, self.draws + count.draws)
            if count.left_over is not None:
                self.sample_at = self.draws + count.left_over
            elif not count.keeps_sample:
                self.sample_at = None
            self.draws += count.draws
            return mark

    def resync(self) -> None:
        """Continue from the state that others gave the generator; raise if they may have drawn what is counted here."""
        state = self.generator.get_state()
        if torch.equal(state, self.stream.start):
            return
        lost, self.draws = self.draws, 0
        self._open(state)
        if lost and not is_seeded(state):
            raise DeferredInitError(
                f"deferred_init: another thread, or code with its own reference to the default generator, moved it "
                f"while {lost} draws of this thread were counted and not yet drawn: the values would not be those of "
                "eager construction.",
                fix="build the model in one thread; ask torch.default_generator for the generator where it is used.",
            )

    def settle(self) -> None:
        """Advance the generator to where drawing would have left it."""
        with GENERATOR_LOCK, without_modes():  # a constructor may call this, while recording
            self.resync()
            if self.draws or self.sample_at != self.stream.first_sample():
                state = self.stream.state_at(self.draws, self.sample_at)
                self.generator.set_state(state)
                self._open(state)


class WatchedGenerator(torch.Generator):
    """Replaces `torch.default_generator` while recording: the real generator, settled before every use."""

    counter: DrawCounter

    def get_state(self) -> Tensor:
        with self._settled() as generator:
            return generator.get_state()

    def set_state(self, state: Tensor) -> None:  # type: ignore[override]
        with self._settled() as generator:
            generator.set_state(state)

    def manual_seed(self, seed: int) -> torch.Generator:
        with self._settled() as generator:
            return generator.manual_seed(seed)

    def seed(self) -> int:
        with self._settled() as generator:
            return generator.seed()

    def initial_seed(self) -> int:
        return DEFAULT.initial_seed()

    def clone_state(self) -> torch.Generator:
        with self._settled() as generator:
            return generator.clone_state()

    @contextmanager
    def _settled(self) -> Iterator[torch.Generator]:
        """The real generator; in the body, no other thread counts draws."""
        with GENERATOR_LOCK:
            self.counter.settle()
            yield DEFAULT


WATCHER = WatchedGenerator()


@contextmanager
def watched(counter: DrawCounter) -> Iterator[None]:
    """In the body, Python code finds `WATCHER` in place of the default generator."""
    WATCHER.counter = counter
    torch.random.default_generator = torch.default_generator = WATCHER  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.random.default_generator = torch.default_generator = DEFAULT  # type: ignore[attr-defined]


def generator_for(argument: torch.Generator | None, device: torch.device) -> torch.Generator:
    """The generator that an operator on `device` draws from."""
    if argument is not None:  # torch wraps it anew for every operator, so compare addresses
        return DEFAULT if generator_key(argument) in map(generator_key, (DEFAULT, WATCHER)) else argument
    if device.type == "cuda":
        torch.cuda.init()
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    return DEFAULT
