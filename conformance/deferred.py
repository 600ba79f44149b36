"""Torch's operators and modules within `deferred_init`: what is materialised later, bit for bit, whole and by block.

python -m conformance.deferred [name ...] [--fraction 0.05] [--seed 0] [--fresh]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gridwise.deferred_init import deferred_init, is_deferred, materialize_shard, materialize_tensor
from gridwise.models.recording.containers import described, flatten

from . import tiles
from .findings import Finding
from .on_threads import EXACT, SEED, difference, like, outcome_of
from .samples import Sample
from .suite import VERSION, Suite

WAYS = ("whole", "block")
"""A block: the second half along the largest dim."""
VARYING = {"linalg.lstsq", "linalg.lstsq.grad_oriented"}
"""Operators of which torch's own results differ in the last bit from call to call, by where LAPACK's workspace lies."""


def check(sample: Sample, chosen: Sequence[str]) -> Iterator[Finding]:
    """What came of a sample that is deferred."""
    torch.set_num_threads(1)
    for way in chosen:
        case = f"{sample.name}: {way}"
        try:
            expected, tree = flatten(_made(sample, [like(x, x) for x in sample.tensors]))
        except Exception as error:
            yield Finding(case, sample.operator, "inapplicable", text=f"{type(error).__name__}: {error}")
            continue
        if any(x.layout != torch.strided for x in expected):
            yield Finding(case, sample.operator, "inapplicable", text="the result is sparse")
            continue
        try:
            problem = _compared(sample, expected, described(tree), way)
        except Exception as error:
            outcome, text = outcome_of(error)
            yield Finding(case, sample.operator, outcome, text=text)
            continue
        yield Finding(case, sample.operator, "wrong" if problem else "equal", text=problem)


def _made(sample: Sample, tensors: Sequence[Tensor]) -> Any:
    """What the sample makes of tensors, or the state of its module."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        if sample.make is not None:
            return sample.make().state_dict(keep_vars=True)
        return sample.call(*tensors)


def _compared(sample: Sample, expected: Sequence[Tensor], form: object, way: str) -> str:
    """What differs, or nothing."""

    def build() -> Any:
        # Written by operators, so that they are recorded, as an initialiser's are.
        given = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x.detach()) for x in sample.tensors]
        return _made(sample, given)

    outputs, tree = flatten(deferred_init(build))
    if described(tree) != form:
        return "the structure of the outputs"
    after = torch.get_rng_state()
    for i, (y, whole) in enumerate(zip(outputs, expected, strict=True)):
        if not is_deferred(y) and y is not whole and not _is_alike(y, whole):
            return f"output {i} is real at once, and differs"
        box = _half(whole) if way == "block" else ...
        own = materialize_shard(y, box) if way == "block" and whole.dim() else materialize_tensor(y)
        wanted = whole[box] if whole.dim() else whole
        is_near = sample.operator in VARYING and difference(own, wanted, ...) < EXACT
        if "empty" not in sample.operator and not is_near and not _is_alike(own, wanted):
            return f"output {i}: other bits"
        if (own.shape, own.dtype, own.device) != (wanted.shape, wanted.dtype, wanted.device):
            return f"output {i}: another shape or dtype"
    torch.manual_seed(SEED)
    _made(sample, [like(x, x) for x in sample.tensors])
    return "" if torch.equal(torch.get_rng_state(), after) else "the state in which torch's generator is left"


def _half(x: Tensor) -> Any:
    if not x.dim():
        return ...
    dim = max(range(x.dim()), key=lambda d: x.shape[d])
    return tuple(slice(x.shape[d] // 2 if d == dim else 0, x.shape[d]) for d in range(x.dim()))


def _is_alike(own: Tensor, wanted: Tensor) -> bool:
    """Whether tensors have the same bits."""
    if own.shape != wanted.shape or own.dtype != wanted.dtype:
        return False
    # Copied, since a tensor of one element may have any strides and still be contiguous, but not be viewed as bytes.
    a, b = (torch.empty(x.shape, dtype=x.dtype).copy_(x.detach()).view(-1).view(torch.uint8) for x in (own, wanted))
    return torch.equal(a, b)


SUITE = Suite(
    "deferred",
    "Torch's operators and modules, deferred",
    f"The samples of torch {VERSION}'s two databases as initialisers under `gridwise.deferred_init`: an operator "
    "on tensors that the initialiser makes, and constructors of modules. What is materialised later, whole, and "
    "the second half along the largest dim, is compared with torch's own result bit for bit, random numbers "
    "included, and so is the state of torch's generator. "
    "Of a tensor that is deferred, a subclass, torch computes singular values, and eigenvalues of symmetric matrices, by "
    "another routine of LAPACK (together with the vectors): they differ in the last bit, alone and in norms and condition "
    "numbers. Torch's own results of `linalg.lstsq` differ in the last bit from call to call; they are compared to 1e-9.",
    tiles.entries,
    lambda sample: WAYS,
    check,
    unit="operators and modules",
)
run = SUITE.run

if __name__ == "__main__":
    SUITE.main()
