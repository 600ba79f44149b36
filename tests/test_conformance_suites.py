"""A seeded handful of the cases of each suite over torch's databases; `make conformance` runs many more of them."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from conformance import deferred, dtypes, fakes, modules, on_processes, operators, samples, tiles
from conformance.findings import Kept
from conformance.on_threads import difference, like
from conformance.suite import Suite

SEED = 3
HANDFUL: dict[str, tuple[Suite, tuple[str, ...], float]] = {
    "modules": (modules.SUITE, ("nn.BatchNorm2d", "nn.GRU", "nn.LayerNorm"), 0.01),
    "tiles": (tiles.SUITE, ("cat", "cosine_similarity", "linalg.inv", "lu_unpack", "nn.Conv2d", "dropout"), 0.004),
    "fakes": (fakes.SUITE, ("matmul", "sort", "nn.LSTM"), 0.01),
    "deferred": (deferred.SUITE, ("cumsum", "normal", "nn.Linear"), 0.02),
    "dtypes": (dtypes.SUITE, ("softmax.with_dtype", "maximum", "nn.functional.conv2d"), 0.0005),
}


@pytest.mark.parametrize("name", HANDFUL)
def test_a_handful(name: str, tmp_path: Path) -> None:
    suite, names, fraction = HANDFUL[name]
    kept = Kept(tmp_path / "found.jsonl")
    entries = [
        each for each in suite.entries() if each.name.removeprefix("nn.functional.") in names or each.name in names
    ]
    assert len(entries) == len(names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [each for entry in entries for each in suite.examine(entry, kept, fraction, SEED)]
    assert {each.operator for each in found} == {entry.name for entry in entries}
    assert [each for each in found if each.outcome in ("refused", "wrong")] == []
    assert Kept(kept.path).found == kept.found


def test_the_databases_are_whole() -> None:
    assert len(operators.entries()) > 600
    assert len(modules.entries()) > 100
    known = {op.name for op in samples.operators()}
    assert len(set(dtypes.COMMON)) == 40
    assert known.issuperset(dtypes.COMMON)


def test_a_tenth_is_on_processes() -> None:
    assert on_processes.SUITE.factor == 0.1
    assert len(on_processes.SUITE.entries()) == len(operators.entries())


def test_blocks_lie_in_memory_as_their_tensor() -> None:
    x = torch.arange(24.0).reshape(1, 2, 3, 4)
    last = x.contiguous(memory_format=torch.channels_last)
    assert like(last, last[:, :, 1:]).is_contiguous(memory_format=torch.channels_last)
    wide = x[..., :1].expand(1, 2, 3, 4)
    assert like(wide, wide[:, :, 1:]).stride()[-1] == 0


def test_differences_of_odd_numbers() -> None:
    nan, inf = torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("inf")])
    assert difference(nan, nan.clone(), ...) == difference(inf, inf.clone(), ...) == 0
    assert min(difference(nan, inf, ...), difference(-inf, inf, ...)) > 1e30
    small = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
    assert difference(small, small, ...) == 0
