"""A tenth of the cases of torch's operator database on workers that are processes.

python -m conformance.on_processes [name ...] [--fraction 0.05] [--seed 0] [--fresh]
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from unittest.mock import patch

import torch

import gridwise
from gridwise.comm.launching.pool import Pool
from gridwise.models import placing

from . import operators
from .findings import Finding
from .on_threads import Expected, allowance, closed_over, gathered, on_worker, outcome_of, recorded, sensitivity
from .samples import Sample, Way, ways
from .suite import VERSION, Suite

MOST = 4
"""Workers."""
SECONDS = 120.0


def check(sample: Sample, chosen: Sequence[Way]) -> Iterator[Finding]:
    """What came of a sample, cut in each of these ways."""
    for way in chosen:
        case = f"{sample.name}: {way}"
        try:
            Expected(sample)
        except Exception as error:
            yield Finding(case, sample.operator, "inapplicable", text=f"{type(error).__name__}: {error}")
            continue
        try:
            found = pool().run(_on_process, sample.operator, sample.name, way, workers=way.workers, timeout=SECONDS)
        except Exception as error:
            outcome, text = outcome_of(error)
            yield Finding(case, sample.operator, outcome, text=text)
            continue
        errors: dict[str, float] = {}
        for each, _, _ in found:
            for part, size in each.items():
                errors[part] = max(size, errors.get(part, 0.0))
        name, worst = max(errors.items(), key=lambda pair: pair[1], default=("", 0.0))
        allowed = max(each for _, _, each in found)
        if worst > allowed:
            yield Finding(case, sample.operator, "wrong", worst, f"{name}: {worst:.1e}")
        else:
            gathers = found[0][1]
            yield Finding(case, sample.operator, "gathered" if gathers else "equal", worst, "; ".join(gathers))


@cache
def pool() -> Pool:
    """The workers, started once."""
    made = Pool(MOST)
    atexit.register(made.close)
    return made


@lru_cache(maxsize=1)
def _samples(operator: str) -> dict[str, Sample]:
    (entry,) = (each for each in operators.entries() if each.name == operator)
    return {sample.name: sample for sample in entry.samples()}


def _on_process(operator: str, name: str, way: Way) -> tuple[dict[str, float], list[str], float]:
    """Errors by name, what is gathered, and the error that is allowed, on one worker of all."""
    torch.set_num_threads(1)
    sample = _samples(operator)[name]
    if way.others == "closed":
        sample = closed_over(sample)
    expected = Expected(sample)
    with patch.object(placing, "SMALL", 0):
        errors, report = on_worker(gridwise.world().transport, sample, recorded(sample), expected, way)
    allowed = allowance(sample)
    if max(errors.values(), default=0.0) > allowed:
        allowed = max(allowed, sensitivity(sample, expected))
    return errors, gathered(report), allowed


SUITE = Suite(
    "on_processes",
    "A tenth of the operators on processes",
    f"A tenth of the chosen cases of torch {VERSION}'s operator database once more, with at least one of each "
    "operator: workers are processes of one machine, and messages go through Gridwise's own transports.",
    operators.entries,
    ways,
    check,
    factor=0.1,
)
run = SUITE.run

if __name__ == "__main__":
    SUITE.main()
