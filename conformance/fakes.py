"""Torch's operators and modules on fake tensors: shape, dtype, strides and device as the real operator's.

python -m conformance.fakes [name ...] [--fraction 0.05] [--seed 0] [--fresh]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gridwise.fake import fake_mode, is_fake
from gridwise.models.recording.containers import described, flatten

from . import tiles
from .findings import Finding
from .on_threads import Expected, outcome_of
from .samples import Sample
from .suite import VERSION, Suite

ALONE = ("fake",)
"""The one way in which a sample is run."""


def check(sample: Sample, chosen: Sequence[str]) -> Iterator[Finding]:
    """What came of a sample on fakes."""
    torch.set_num_threads(1)
    for way in chosen:
        case = f"{sample.name}: {way}"
        try:
            expected = Expected(sample)
        except Exception as error:
            yield Finding(case, sample.operator, "inapplicable", text=f"{type(error).__name__}: {error}")
            continue
        try:
            problem = _compared(sample, expected)
        except Exception as error:
            outcome, text = outcome_of(error)
            yield Finding(case, sample.operator, outcome, text=text)
            continue
        yield Finding(case, sample.operator, "wrong" if problem else "equal", text=problem)


def _compared(sample: Sample, expected: Expected) -> str:
    """What differs, or nothing."""
    with fake_mode():
        given = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).requires_grad_(x.requires_grad)
            for x in sample.tensors
        ]
        module = None if sample.make is None else sample.make()
        outputs, tree = flatten(sample.of(module)(*given))
    if described(tree) != expected.form:
        return "the structure of the outputs"
    for i, (y, whole) in enumerate(zip(outputs, expected.outputs, strict=True)):
        if not is_fake(y):
            return f"output {i} is not fake"
        for name, own, torchs in zip(
            ("shape", "dtype", "device", "requires_grad", "strides"), facts(y), facts(whole), strict=True
        ):
            if own != torchs:
                return f"{name} of output {i}: {own}, torch's is {torchs}"
    return ""


def facts(x: Tensor) -> tuple[object, ...]:
    """What a fake has of a tensor; strides of dims that have any effect."""
    strides = tuple(s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1) if x.numel() else ()
    return tuple(x.shape), x.dtype, x.device, x.requires_grad, strides


SUITE = Suite(
    "fakes",
    "Torch's operators and modules on fakes",
    f"The samples of torch {VERSION}'s two databases under `gridwise.fake.fake_mode`: inputs and parameters are "
    "fake; shape, dtype, device, strides and `requires_grad` of all outputs are compared with those of torch's "
    "own call on real tensors.",
    tiles.entries,
    lambda sample: ALONE,
    check,
    unit="operators and modules",
)
run = SUITE.run

if __name__ == "__main__":
    SUITE.main()
