"""Samples of torch's operator database on boxes: a few in every run, all in soak."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from gridwise.errors import PartitionError, UnsupportedError

from .contract import check

SHARES, LARGEST = 24, 20_000


def entries() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return list(op_db)


def check_entry(entry: Any, count: int) -> set[str]:
    """The operators on boxes that some samples of an entry have called."""
    if not entry.dtypes:  # not for a CPU
        return set()
    dtype = torch.float64 if torch.float64 in entry.dtypes else sorted(entry.dtypes, key=str)[0]
    samples = list(entry.sample_inputs("cpu", dtype, requires_grad=False))
    found: set[str] = set()
    for sample in random.Random(0).sample(samples, min(count, len(samples))):
        leaves, tree = tree_flatten((sample.input, sample.args, sample.kwargs))
        spots = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors = [leaves[i].detach() for i in spots]

        def function(*given: Tensor, leaves: Any = leaves, spots: Any = spots, tree: Any = tree) -> Any:
            filled = list(leaves)
            for i, x in zip(spots, given, strict=True):
                filled[i] = x
            first, args, kwargs = tree_unflatten(filled, tree)
            return entry.op(first, *args, **kwargs)

        if sum(x.numel() for x in tensors) <= LARGEST:
            try:
                found |= check(function, *tensors, boxes=3, rtol=1e-10)
            except (UnsupportedError, PartitionError):  # what cannot be recorded, or what torch itself refuses
                continue
    return found


@pytest.mark.filterwarnings("ignore")
def test_a_few_of_torchs_operators() -> None:
    found: set[str] = set()
    for entry in random.Random(1).sample(entries(), 6):
        found |= check_entry(entry, 1)
    assert len(found) >= 3, found


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("share", range(SHARES))
def test_torchs_operators(share: int) -> None:
    for entry in entries()[share::SHARES]:
        try:
            check_entry(entry, 8)
        except Exception as error:
            error.add_note(f"of {entry.full_name} in torch's database")
            raise
