"""One model by tiles against itself: outputs, gradients of the input and of parameters, buffers; in training and in eval mode.

    python -m zoo.tiled [name ...] [--missing]

Pictures are cut into 8 x 8 tiles where a tensor has their size, volumes into 3 x 3 x 3 uneven ones. A model that draws random
numbers is compared with itself on one worker, whose numbers depend on global indices too. A model counts as refused if
tiles of a training step do not fit, as planned, into a quarter of the memory that its own step takes, or if no stage is cut
into 3 x 3 tiles (volumes: 2 x 2 x 2). With `--missing`, only those of which the page does not say all this, first those that
were never tried.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import gridwise
from gridwise.tiles import schedule, stored_values
from gridwise.tiles.runner import Scheduled

from .catalogue import Specimen, specimens
from .check import EXACT, SENSITIVITY, SINGLE, Step, computes_in_single, counted, differences, specimen_of
from .step_memory import memory_of_step

KEPT = Path(__file__).parents[1] / "out" / "zoo-tiled.jsonl"
FOUND = Path(__file__).parent / "found.json"
"""What the page says: for each model, what was found of it last, distributed and by tiles."""
LIMIT = 900.0
"""Seconds that a model may take."""
LEAST = 5
"""The least rows of a tile: a latent of one row becomes a picture of many."""
QUARTER = 4
"""Into what part of the memory of a model's own step its tiles must fit."""
MODELS_OF_A_PROCESS = 20


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
    most_tiles: int = 0
    """Of the stage that is cut into most, in the mode in which these are fewer."""
    memory: int = 0
    """Bytes of the model's own training step, besides parameters, their gradients, inputs and outputs."""
    planned: int = 0
    """Bytes of the tiles of a step that are planned for a quarter of that."""
    objection: str = ""
    """Why it counts as refused though it is equal."""


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
    for mode in ("train", "eval"):
        model.train(mode == "train")
        try:
            _compare_as_asked(found, model, specimen)
        except gridwise.errors.GridwiseError as error:
            found.outcome, found.text = "refused", f"{mode}: {error}"
        except Exception as error:
            found.outcome, found.text = "failed", f"{mode}: {type(error).__name__}: {error}"
        if found.outcome != "equal":
            return asdict(found)
    if found.objection:
        found.outcome, found.text = "refused", f"equal, but {found.objection}"
    return asdict(found)


def _compare_as_asked(found: TiledFinding, model: torch.nn.Module, specimen: Specimen) -> None:
    """Compare; a model whose first call fills a cache is called once before, as the error asks."""
    try:
        _compare(found, model, specimen)
    except gridwise.errors.UnsupportedError as error:
        if "call the model once before" not in str(error):
            raise
        with torch.no_grad():
            model(specimen.input(), **specimen.others())
        _compare(found, model, specimen)


def kept() -> dict[str, TiledFinding]:
    """What was found before, by the names of models."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    return {each["name"]: TiledFinding(**each) for each in map(json.loads, lines)}


def examine(names: Sequence[str]) -> dict[str, TiledFinding]:
    """A finding for each model, those that are kept taken over; in another process, which may hang or die."""
    found = kept()
    KEPT.parent.mkdir(exist_ok=True)
    pool = None
    for name in names:
        if name in found:
            continue
        pool = pool or multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=MODELS_OF_A_PROCESS)
        try:
            found[name] = TiledFinding(**pool.apply_async(check_tiled, (name,)).get(LIMIT))
        except Exception as error:
            pool.terminate()
            pool = None
            late = isinstance(error, multiprocessing.TimeoutError)
            text = f"not done after {LIMIT:.0f} s" if late else f"{type(error).__name__}: {error}"
            found[name] = TiledFinding(name, "failed", text=text)
        with KEPT.open("a") as file:
            file.write(json.dumps(asdict(found[name])) + "\n")
        print(f"{found[name].outcome:8} {name:44} by tiles {found[name].text[:90]}", flush=True)
    if pool is not None:
        pool.terminate()
    return found


def _tiles_of(specimen: Specimen) -> Iterator[tuple[int, ...]]:
    """Sizes of tiles to try, from large to small."""
    space = specimen.shape[2:]
    for part in (1, 2, 4):
        least = max(2, LEAST // part)
        yield tuple(max(least, -(-n * 11 // (32 * part)) if len(space) == 3 else -(-n // (8 * part))) for n in space)


def _compare(found: TiledFinding, model: torch.nn.Module, specimen: Specimen) -> None:
    x, others = specimen.input(), specimen.others()
    mine, made, most = _by_tiles(model, specimen)
    found.tiles = made.schedule.tiles
    found.wholes = sum(stage.whole is not None for stage in made.schedule.stages)
    found.most_tiles = min(most, found.most_tiles or most)
    if most < _enough(specimen):
        found.objection = f"no stage is cut into more than {most} tiles"
    try:
        reference = _step(_plain(model, specimen, made.graph.draws), x, others)
    except RuntimeError:  # torch cannot differentiate the model itself in this mode
        with torch.no_grad():
            mine, made, _ = _by_tiles(model, specimen)
            reference = _step(_plain(model, specimen, made.graph.draws), x, others)
    found.error = max(found.error, *differences(mine, reference))
    if found.error > found.allowed and computes_in_single(copy.deepcopy(model), x, others):
        found.allowed = SINGLE
    if found.error > found.allowed:
        noise = torch.randn(specimen.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        other = _step(_plain(model, specimen, made.graph.draws), x * (1 + 1e-15 * noise), others)
        found.allowed = max(found.allowed, SENSITIVITY * max(differences(other, reference)))
    found.outcome = "equal" if found.error <= found.allowed else "wrong"
    if found.outcome == "equal" and model.training:
        _plan_for_a_quarter(found, made, memory_of_step(copy.deepcopy(model), x, others))


def _by_tiles(model: torch.nn.Module, specimen: Specimen) -> tuple[Step, Scheduled, int]:
    """A step by tiles, how it ran, and into how many tiles a stage was cut: ever smaller ones until these are enough."""
    for tile, small_ones in product(_tiles_of(specimen), (stored_values.LITTLE, 0)):
        with mock.patch.object(stored_values, "LITTLE", small_ones), mock.patch.object(schedule, "LITTLE", small_ones):
            big = gridwise.tiled(copy.deepcopy(model), tile=tile)
            mine = _step(big, specimen.input(), specimen.others())
        (runner,) = [type(big)._tiled_runners["forward"]]
        made = next(iter(runner._kept.values()))
        most = max(prod(stage.counts) for stage in made.schedule.stages)
        if most >= _enough(specimen):
            break
    return mine, made, most


def _enough(specimen: Specimen) -> int:
    return {3: 3, 4: 3**2, 5: 2**3}[len(specimen.shape)]


def _plain(model: torch.nn.Module, specimen: Specimen, draws: bool) -> Any:
    """What a model by tiles is compared with: one that has not run yet, so that its buffers are as at the start."""
    if not draws:
        return copy.deepcopy(model)
    P = gridwise.world().create_cartesian_topology_partition([1] * len(specimen.shape))
    return gridwise.distribute(copy.deepcopy(model), P)


def _plan_for_a_quarter(found: TiledFinding, made: Scheduled, memory: int) -> None:
    """Note whether tiles of a training step can be planned for a quarter of the memory that the model's own step takes."""
    found.memory = memory
    try:
        found.planned = schedule.scheduled(made.graph, memory // QUARTER, made.schedule.backward).peak
    except gridwise.errors.UnsupportedError as error:
        found.objection = f"not in a quarter of its memory: {error}"


def _step(model: torch.nn.Module, x: torch.Tensor, others: dict[str, Any]) -> Step:
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    model.zero_grad()
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    made = counted(lambda: model(x, **others), parameters, buffers, x, counts=False)
    return replace(made, of_parameters={name: g.clone() for name, g in made.of_parameters.items()})


def missing(names: Sequence[str]) -> list[str]:
    """Those of which it is not known what comes of them by tiles; first those never tried, and those with few operators."""
    known = json.loads(FOUND.read_text())
    tried = known["by tiles"]
    operators = {name: found.get("nodes", 0) for name, found in known["distributed"].items()}
    left = (name for name in names if "memory" not in tried.get(name, {}))
    return sorted(left, key=lambda name: (name in tried, operators.get(name, 0)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--missing", action="store_true")
    arguments = parser.parse_args()
    chosen = [each.name for each in specimens(arguments.names)]
    examine(missing(chosen) if arguments.missing else chosen)
