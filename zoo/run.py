"""Distribute every model of the zoo on four workers and compare; then the same by tiles on one.

    python -m zoo.run [name ...] [--fresh] [--threads] [--kept] [--write]

Each finding is kept in out/zoo.jsonl, or in out/zoo-tiled.jsonl, as soon as it is there; a run that was interrupted goes on
where it stopped. With names, only models whose names begin so. `--write` puts the table into docs/zoo.md: what was found here,
and of all other models what was found last (zoo/found.json).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import Progress

from gridwise.comm.launching.pool import Pool

from . import threads, tiled
from .catalogue import Specimen, specimens
from .check import Finding, check

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "out" / "zoo.jsonl"
TABLE = ROOT / "docs" / "zoo.md"
LIMIT = 900.0
WORKERS = 4
KNOWN_GATHERS = frozenset({"col2im"})
"""Operators without a rule of which it is known that they are gathered."""
GOALS = {"convolutional": 1.3, "transformer": 1.6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--kept", action="store_true", help="run nothing: only what was found before")
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--threads", action="store_true", help="workers are threads: quicker on few cores")
    arguments = parser.parse_args()
    chosen = list(specimens(arguments.names))
    if arguments.names:  # in the order in which they are named
        chosen.sort(key=lambda each: [each.name.startswith(name) for name in arguments.names].index(True))
    if arguments.fresh:
        KEPT.unlink(missing_ok=True)
        tiled.KEPT.unlink(missing_ok=True)
    done = kept()
    if arguments.kept:
        findings = [done[each.name] for each in chosen if each.name in done]
    else:
        findings = examine(chosen, done, arguments.transport, arguments.threads)
    names = [each.name for each in chosen]
    by_tiles = tiled.kept() if arguments.kept else tiled.examine(names)
    if arguments.write:
        write(findings, by_tiles)
    wrong = [name for name in names if name in by_tiles and by_tiles[name].outcome == "wrong"]
    for name in wrong:
        print(f"wrong by tiles: {name}: {by_tiles[name].error:.1e}")
    sys.exit(verdict(findings) or int(bool(wrong)))


def write(findings: Sequence[Finding], by_tiles: Mapping[str, tiled.TiledFinding]) -> None:
    """Put findings in the place of earlier ones of the same models, and write the page of all models."""
    known = json.loads(tiled.FOUND.read_text())
    known["distributed"] |= {each.name: vars(each) for each in findings}
    known["by tiles"] |= {name: vars(each) for name, each in by_tiles.items()}
    names = [each.name for each in specimens()]
    known = {kind: {name: each[name] for name in names if name in each} for kind, each in known.items()}
    tiled.FOUND.write_text(json.dumps(known, indent=0) + "\n")
    all_findings = [Finding(**each) for each in known["distributed"].values()]
    all_tiles = {name: tiled.TiledFinding(**each) for name, each in known["by tiles"].items()}
    TABLE.write_text(table(all_findings, names, all_tiles))


def kept() -> dict[str, Finding]:
    if not KEPT.exists():
        return {}
    found = [Finding(**json.loads(line)) for line in KEPT.read_text().splitlines()]
    return {finding.name: finding for finding in found}


def examine(chosen: list[Specimen], done: dict[str, Finding], transport: str, by_threads: bool) -> list[Finding]:
    """A finding for each model, those that are kept taken over."""
    KEPT.parent.mkdir(exist_ok=True)
    findings = []
    with ExitStack() as stack:
        pool = None if by_threads else stack.enter_context(Pool(WORKERS, transport))
        progress, file = stack.enter_context(Progress()), stack.enter_context(KEPT.open("a"))
        task = progress.add_task("models", total=len(chosen))
        for specimen in chosen:
            progress.update(task, description=specimen.name)
            if specimen.name not in done:
                done[specimen.name] = one(pool, specimen)
                file.write(json.dumps(vars(done[specimen.name])) + "\n")
                file.flush()
                progress.console.print(line(done[specimen.name]))
            findings.append(done[specimen.name])
            progress.advance(task)
    return findings


def one(pool: Pool | None, specimen: Specimen) -> Finding:
    try:
        if pool is None:
            return threads.check(specimen.name)
        found: list[dict[str, Any]] = pool.run(check, specimen.name, timeout=LIMIT)
        return Finding(**found[0])
    except Exception as error:
        return Finding(specimen.name, specimen.kind, "failed", text=f"{type(error).__name__}: {error}")


def line(found: Finding) -> str:
    text = found.text.splitlines()[0][:90] if found.text else ""
    return (
        f"{found.outcome:8} {found.name:44} error {found.error:8.1e} of {found.allowed:8.1e}  flops {found.flops:.2f} "
        f"saved {found.saved:.2f}  {len(found.gathers)} gathers  {found.first:.1f} s {text}"
    )


LIBRARY_NAMES = {
    "classics": "well-known public repositories, rewritten",
    "tv": "torchvision", "tvseg": "torchvision", "tvvideo": "torchvision", "tvdet": "torchvision",
    "timm": "timm", "monai": "MONAI", "diffusers": "diffusers", "vae": "diffusers, autoencoders",
    "loss": "kornia, MONAI and piqa: losses and filters", "nnunet": "nnU-Net", "yolo": "ultralytics",
    "neuralop": "neuraloperator", "hf": "transformers",
}  # fmt: skip


def library(name: str) -> str:
    return LIBRARY_NAMES[name.partition(".")[0]]


def of_tiles(found: tiled.TiledFinding | None) -> str:
    """What came of a model by tiles, as a cell of the table."""
    if found is None:
        return "not yet run"
    if found.outcome == "equal":
        return f"{found.error:.0e}, {found.tiles:,} tiles"
    return f"{found.outcome}: {found.text.splitlines()[0][:120] if found.text else f'{found.error:.0e}'}"


def about_tiles(by_tiles: Mapping[str, tiled.TiledFinding]) -> str:
    counts = Counter(found.outcome for found in by_tiles.values())
    shares = [found.planned / found.memory for found in by_tiles.values() if found.outcome == "equal" and found.memory]
    earlier = counts["equal"] - len(shares)
    text = (
        "*By tiles* is `gridwise.tiled` on one worker, cut into at least 3 x 3 tiles (volumes: 2 x 2 x 2, of unequal sizes; "
        f"sounds: 3), in training and in evaluation mode, with the same comparison: {len(by_tiles)} were tried, "
        f"{counts['equal']} are equal, {counts['refused']} are refused, {counts['wrong']} are wrong, {counts['failed']} could "
        "not be tried. A model counts as refused, too, if tiles of a training step cannot be planned for a quarter of the "
        "memory that the model's own step takes, as torch's allocator counts it besides parameters, inputs, outputs and their "
        "gradients. A model that fills a cache at its first call, and is refused for it, is called once before."
    )
    if shares:
        text += f" Of the equal ones, {len(shares)} were planned so; their tiles take at most {max(shares):.2f} of that memory."
    return text + (f" The other {earlier} were tried before this was asked." if earlier else "")


def table(findings: list[Finding], names: Sequence[str], by_tiles: Mapping[str, tiled.TiledFinding]) -> str:
    """The page of the documentation, of what was found of the models of these names."""
    found = {finding.name: finding for finding in findings}
    counts = Counter(finding.outcome for finding in findings)
    versions = Counter(finding.torch.partition("+")[0] for finding in findings)
    kinds = Counter(finding.workers for finding in findings)
    rows = [
        "# The zoo",
        "",
        f"`make zoo` distributes {len(names)} public models in training mode on {WORKERS} workers, two along each of the "
        "last two dims, and compares outputs, gradients of the input, of all parameters, and buffers with the model's own, "
        f"in float64. This page is written by it: {len(findings)} were tried, {counts['equal']} are equal, "
        f"{counts['refused']} are refused, {counts['wrong']} are wrong, {counts['failed']} could not be tried; "
        f"{len(names) - len(findings)} are still to be run.",
        "",
        f"Workers: {', '.join(f'{kind} for {count}' for kind, count in kinds.items())}. Threads are those of one process "
        "(`python -m zoo.run --threads`): one recording, four programs, the messages in memory. Processes go through "
        "`gridwise.distribute`. Versions "
        f"of torch: {', '.join(f'{version} for {count}' for version, count in versions.items())}.",
        "",
        "*Equal* is an error of at most 1e-9, relative to the largest number of each tensor, or 100 times what a relative "
        "change of the input by 1e-15 causes in the sequential model, or 1e-5 if the model itself computes in float32. A model "
        "of which a worker computes more than nine tenths counts as refused.",
        "",
        about_tiles(by_tiles),
        "",
        "| library | models | tried | equal | refused | wrong | worst error | equal by tiles |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in dict.fromkeys(LIBRARY_NAMES.values()):
        own = [finding for finding in findings if library(finding.name) == each]
        many = Counter(finding.outcome for finding in own)
        worst = max((finding.error for finding in own if finding.outcome == "equal"), default=0.0)
        models = sum(library(name) == each for name in names)
        refused = many["refused"] + many["failed"]
        tiles = [one.outcome == "equal" for name, one in by_tiles.items() if library(name) == each]
        figures = (
            f"{len(own)} | {many['equal']} | {refused} | {many['wrong']} | {worst:.0e} | {sum(tiles)} of {len(tiles)}"
        )
        rows.append(f"| {each} | {models} | {figures} |")
    rows += [
        "",
        "Shares are those of the worker that has most, of the sequential model: floating-point operations of forward and "
        "backward, and bytes that autograd keeps, parameters apart. A quarter each would be perfect.",
        "",
        "| model | operators | outcome | error | operations | saved for backward | gathers | by tiles |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        tiles = of_tiles(by_tiles.get(name))
        one = found.get(name)
        if one is None:
            rows.append(f"| {name} | | not yet run | | | | | {tiles} |")
        elif one.outcome in ("equal", "wrong"):
            shares = f"{one.error:.0e} | {one.flops:.2f} | {one.saved:.2f} | {', '.join(one.gathers) or '-'}"
            rows.append(f"| {name} | {one.nodes} | {one.outcome} | {shares} | {tiles} |")
        else:
            reason = one.text.splitlines()[0][:200] if one.text else ""
            rows.append(f"| {name} | {one.nodes or ''} | {one.outcome}: {reason} | | | | | {tiles} |")
    return "\n".join(rows) + "\n"


def verdict(findings: list[Finding]) -> int:
    """Print the sums; 1 if a model is wrong, or an operator has no rule that is not known to have none."""
    counts = Counter(found.outcome for found in findings)
    print(f"{dict(counts)}, {counts['equal'] / max(1, len(findings)):.1%} equal")
    for kind, goal in GOALS.items():
        shares = [found.flops * WORKERS for found in findings if found.kind == kind and found.outcome == "equal"]
        if shares:
            print(
                f"{kind}: operations of the busiest worker, median {median(shares):.2f} / P (goal {goal}), "
                f"most {max(shares):.2f} / P"
            )
    unknown = sorted({name for found in findings for name in found.without_rule} - KNOWN_GATHERS)
    for name in unknown:
        print(f"no rule, and not known to have none: {name}")
    for found in findings:
        if found.outcome in ("wrong", "failed"):
            print(f"{found.outcome}: {found.name}: {found.text[:300]}")
    return int(bool(counts["wrong"] or unknown))


if __name__ == "__main__":
    main()
