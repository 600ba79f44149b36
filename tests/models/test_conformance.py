"""A handful of torch's operator database; `make conformance` runs much more of it."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

from conformance.findings import Kept
from conformance.operators import examine, page
from conformance.samples import name_of, operators

HANDFUL = random.Random(5).sample(
    [
        "add",
        "amax",
        "cdist",
        "cumsum",
        "gather",
        "index_add",
        "linalg.solve",
        "nn.functional.conv2d",
        "roll",
        "scatter_add",
    ],
    4,
)


def test_a_handful_of_torchs_own_samples(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "found.jsonl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [each for op in operators() if name_of(op) in HANDFUL for each in examine(op, kept, 0.004)]
    assert {each.operator for each in found} == set(HANDFUL)
    assert [each for each in found if each.outcome not in ("equal", "inapplicable")] == []
    assert Kept(kept.path).found == kept.found, "a run that goes on has what was found before"
    assert f"| {len(HANDFUL)} |" in page(found, len(HANDFUL), "")
