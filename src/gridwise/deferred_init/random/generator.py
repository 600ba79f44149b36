"""The state of torch's CPU generator as numbers, and the same state any number of draws later.

A state is the byte tensor of `torch.Generator.get_state()`:

    byte     0  the seed
             8  `left`: draws until the words are regenerated, plus 1
            16  `next`: index of the next word
            24  624 words, each in 8 bytes
          5016  the left-over normal sample of a pair, 32 bytes; the last 8 say whether there is one
          5048  the same in single precision (no initialiser uses it)

A *draw* is one 32-bit word of the Mersenne Twister. `advanced` skips draws: by jump-ahead where that is faster, else
with numpy's Mersenne Twister, which generates the same words. `layout_is_known` checks all of this against torch once
per process; if it does not hold, nothing here is used and the callers fall back to drawing for real.
"""

from __future__ import annotations

from collections import deque
from functools import cache

import numpy as np
import torch
from torch import Tensor

from gridwise.deferred_init.random import jump

STATE_BYTES = 5056
JUMP_FROM = 1_500_000  # draws; skipping as many takes as long as a jump of a new length
JUMP_AGAIN_FROM = (
    500_000  # the same for a length that has come before: from its first jump on, its polynomial is cached
)
_recent: deque[int] = deque(maxlen=256)  # lengths in blocks; `jump` caches as many polynomials
_WORDS = slice(24, 24 + 8 * jump.N)
_SAMPLE = slice(5016, 5048)


def advanced(state: Tensor, draws: int) -> Tensor:
    """The state after `draws` more 32-bit draws; a left-over normal sample is kept."""
    if draws == 0:
        return state
    new = state.clone()
    raw = new.numpy()
    header = raw[8:24].view(np.int32)  # left, seeded, next (8 bytes)
    packed = raw[_WORDS].view(np.uint64)
    words, position = packed.astype(np.uint32), _position(header)
    blocks = (position + draws - 1) // jump.N  # regenerations of the words; position 624 still belongs to the old words
    came_before = draws >= JUMP_AGAIN_FROM and blocks in _recent
    if draws >= JUMP_FROM or came_before:
        words = jump.jump(words, blocks)
    elif blocks:
        words = _skip(words, position, draws)
    if draws >= JUMP_AGAIN_FROM and not came_before:
        _recent.append(blocks)
    position += draws - blocks * jump.N
    packed[:] = words
    header[0], header[2] = jump.N + 1 - position, position
    return new


def _position(header: np.ndarray) -> int:
    return jump.N if header[0] == 1 else int(header[2])


def _skip(words: jump.Words, position: int, draws: int) -> jump.Words:
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": position}}
    twister.random_raw(draws, output=False)
    return twister.state["state"]["key"]


def with_sample_of(state: Tensor, other: Tensor) -> Tensor:
    """`state` with the left-over normal sample of `other`."""
    new = state.clone()
    new[_SAMPLE] = other[_SAMPLE]
    return new


def has_sample(state: Tensor) -> bool:
    return bool(state[5040:5044].any())


def is_seeded(state: Tensor) -> bool:
    """Whether nothing was drawn since the generator was seeded."""
    header = state.numpy()[8:24].view(np.int32)
    return bool(header[0] == 1 and header[2] == 0)


def without_sample(state: Tensor) -> Tensor:
    new = state.clone()
    new[_SAMPLE] = 0
    return new


def generator_at(state: Tensor) -> torch.Generator:
    """A new generator in this state."""
    generator = torch.Generator()
    generator.set_state(state)
    return generator


@cache
def layout_is_known() -> bool:
    """Whether this torch's CPU generator is laid out as above, tested by comparing advancing with drawing."""
    generator = torch.Generator().manual_seed(20_101)
    start = generator.get_state()
    if start.numel() != STATE_BYTES:
        return False
    drawn = 0
    for draws in (1, 622, 1, 624, 40 * jump.N):  # to, across and far beyond a regeneration of the words
        torch.empty(draws, device="cpu").uniform_(generator=generator)
        drawn += draws
        if not torch.equal(advanced(start, drawn), generator.get_state()):
            return False
    # jumping against skipping, from a position inside the words
    state = generator.get_state()
    words = state.numpy()[_WORDS].view(np.uint64).astype(np.uint32)
    return bool(np.array_equal(jump.jump(words, 37), _skip(words, jump.N, 37 * jump.N)))
