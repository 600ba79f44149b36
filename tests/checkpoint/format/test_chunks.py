"""The chunks of a tensor, and those that hold a box of it: against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gridwise.checkpoint.format import chunks
from gridwise.grid import Box

shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@given(shapes, st.data())
def test_the_chunks_of_a_box_are_those_with_its_elements(shape: tuple[int, ...], data: st.DataObject) -> None:
    start = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    stop = tuple(data.draw(st.integers(a + 1, n)) for a, n in zip(start, shape, strict=True))
    box = Box(start, stop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK", 8 * data.draw(st.integers(1, 7)))
        per_chunk = chunks.CHUNK // 8
        flat = np.arange(math.prod(shape)).reshape(shape)
        assert list(chunks.chunk_range(shape, 8, box)) == sorted(
            {int(i) // per_chunk for i in flat[box.slices].ravel()}
        )


@given(shapes, st.booleans())
def test_chunks_of_any_tensor_are_its_bytes(shape: tuple[int, ...], turned: bool) -> None:
    x = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    x = x.permute(tuple(reversed(range(x.dim())))) if turned else x
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK", 24)
        parts = [bytes(part) for part in chunks.chunks_of(x)]
    assert all(len(part) <= 24 for part in parts)
    assert b"".join(parts) == x.contiguous().numpy().tobytes()


def test_lazily_conjugated_and_negated_tensors_are_stored_as_their_values() -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    assert b"".join(chunks.chunks_of(x.conj())) == x.conj().resolve_conj().numpy().tobytes()
    assert b"".join(chunks.chunks_of(x.conj().imag)) == (-x.imag).contiguous().numpy().tobytes()
