"""One model by tiles against itself: outputs, gradients of the input and of parameters, buffers; in training and in eval mode.

    python -m zoo.tiled [name ...]

Pictures are cut into 8 x 8 tiles where a tensor has their size, volumes into 4 x 4 x 4. A model that draws random
numbers is compared with itself on one worker, whose numbers depend on global indices too.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import gridwise

from .catalogue import Specimen, specimens
from .check import EXACT, SENSITIVITY, SINGLE, Step, computes_in_single, counted, differences, specimen_of

KEPT = Path(__file__).parents[1] / "out" / "zoo-tiled.jsonl"
LIMIT = 900.0
"""Seconds that a model may take."""
LEAST = 5
"""The least rows of a tile: a latent of one row becomes a picture of many."""


@dataclass
class TiledFinding:
    """What came of one model by tiles."""

    name: str
    outcome: str = "refused"
    """equal, wrong, refused or failed"""
    error: float = 0.0
    allowed: float = EXACT
    text: str = ""
    tiles: int = 0
    wholes: int = 0
    """How many operators are computed whole."""


def check_tiled(name: str) -> dict[str, Any]:
    """What came of the model of that name."""
    specimen, found = specimen_of(name), TiledFinding(name)
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        model = specimen.build().double()
    except Exception as error:
        found.outcome, found.text = "failed", f"cannot be built: {error}"
        return asdict(found)
    for mode in (True, False):
        try:
            _compare(found, model.train(mode), specimen)
        except gridwise.errors.GridwiseError as error:
            found.outcome, found.text = "refused", f"{'train' if mode else 'eval'}: {error}"
        if found.outcome != "equal":
            break
    return asdict(found)


def kept() -> dict[str, TiledFinding]:
    """What was found before, by the names of models."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    return {each["name"]: TiledFinding(**each) for each in map(json.loads, lines)}


def examine(names: Sequence[str]) -> dict[str, TiledFinding]:
    """A finding for each model, those that are kept taken over; in another process, which may hang or die."""
    found = kept()
    KEPT.parent.mkdir(exist_ok=True)
    context = multiprocessing.get_context("spawn")
    for name in names:
        if name in found:
            continue
        with context.Pool(1) as pool:
            try:
                found[name] = TiledFinding(**pool.apply_async(check_tiled, (name,)).get(LIMIT))
            except multiprocessing.TimeoutError:
                found[name] = TiledFinding(name, "failed", text=f"not done after {LIMIT:.0f} s")
            except Exception as error:
                found[name] = TiledFinding(name, "failed", text=f"{type(error).__name__}: {error}")
        with KEPT.open("a") as file:
            file.write(json.dumps(asdict(found[name])) + "\n")
        print(f"{found[name].outcome:8} {name:44} by tiles {found[name].text[:90]}")
    return found


def tile_of(specimen: Specimen) -> tuple[int, ...]:
    space = specimen.shape[2:]
    return tuple(max(LEAST, -(-n // (4 if len(space) == 3 else 8))) for n in space)


def _compare(found: TiledFinding, model: torch.nn.Module, specimen: Specimen) -> None:
    x, others = specimen.input(), specimen.others()
    big = gridwise.tiled(copy.deepcopy(model), tile=tile_of(specimen))
    mine = _step(big, x, others)
    (runner,) = [type(big)._tiled_runners["forward"]]
    scheduled = next(iter(runner._kept.values()))
    found.tiles = scheduled.schedule.tiles
    found.wholes = sum(stage.whole is not None for stage in scheduled.schedule.stages)
    P = gridwise.world().create_cartesian_topology_partition([1] * len(specimen.shape))
    plain: Any = gridwise.distribute(copy.deepcopy(model), P) if scheduled.graph.draws else copy.deepcopy(model)
    reference = _step(plain, x, others)
    found.error = max(found.error, *differences(mine, reference))
    if found.error > found.allowed and computes_in_single(copy.deepcopy(model), x, others):
        found.allowed = SINGLE
    if found.error > found.allowed:
        noise = torch.randn(specimen.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        other = _step(copy.deepcopy(plain), x * (1 + 1e-15 * noise), others)
        found.allowed = max(found.allowed, SENSITIVITY * max(differences(other, reference)))
    found.outcome = "equal" if found.error <= found.allowed else "wrong"


def _step(model: torch.nn.Module, x: torch.Tensor, others: dict[str, Any]) -> Step:
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    model.zero_grad()
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    made = counted(lambda: model(x, **others), parameters, buffers, x, counts=False)
    return replace(made, of_parameters={name: g.clone() for name, g in made.of_parameters.items()})


if __name__ == "__main__":
    examine([each.name for each in specimens(sys.argv[1:])])
