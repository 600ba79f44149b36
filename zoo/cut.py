"""Training with cut parameters against the sequential model: models of the zoo on four workers, in float64.

    python -m zoo.cut [name ...]      three optimisers, three steps each, on the grids [2, 1, 2, 1] and [4, 1, 1, 1]
    python -m zoo.cut --once          any model of the zoo, forward and backward once

A batch has four samples, and dims of space are as in the zoo. Parameters and buffers after the last step are compared with
those of the sequential model, and outputs and gradients of the parameters in the first step. Where that is not equal to 1e-9,
the sequential model is trained once more with its input changed by 1e-15 of itself: what that changes, rounding may change.
A gradient that is zero but for rounding, as that of a bias before a batch norm, is a direction of its own to Adam: its `eps`
is 1e-6 here. Of every third parameter of "frozen" models no gradient is wanted.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils._pytree import tree_leaves

import gridwise
from gridwise.comm.launching.pool import Pool
from gridwise.errors import GridwiseError
from gridwise.nn.parameters.blocks import is_cut

from .catalogue import specimens
from .check import EXACT, SENSITIVITY, specimen_of

CHOSEN = (
    "classics.milesial_unet", "classics.pix2pix_unet", "classics.vanilla_vae", "classics.orig_fno", "classics.edsr",
    "classics.sngan_d_param", "classics.convlstm_zeros", "tv.resnet18", "tv.mobilenet_v3_small", "tv.convnext_tiny",
    "tv.vit_small_custom", "tv.swin_t", "tied", "frozen:classics.milesial_unet_bilinear", "frozen:tv.vit_small_custom",
)  # fmt: skip
OPTIMISERS: dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=1e-3, momentum=0.9, weight_decay=1e-2),
    "AdamW": partial(torch.optim.AdamW, lr=1e-3, eps=1e-6),
    "RMSprop": partial(torch.optim.RMSprop, lr=1e-4, eps=1e-6),
}
BATCH = 4


class Tied(torch.nn.Module):
    """A weight with two names, a layer that is used twice, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.Conv2d(16, 16, 3, padding=1)
        self.head, self.unused = torch.nn.Conv2d(3, 16, 3, padding=1, bias=False), torch.nn.Linear(16, 16)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(torch.relu(self.mix(self.embed(x)))) + self.head(x)


@dataclass
class Subject:
    """A model with its input."""

    model: torch.nn.Module
    x: Tensor
    others: dict[str, Any]


def subject_of(name: str) -> Subject:
    torch.manual_seed(0)
    kind, _, of = name.rpartition(":")
    if name == "tied":
        shape, others, model = (BATCH, 3, 16, 16), {}, Tied()
    else:
        specimen = specimen_of(of)
        shape, others, model = (BATCH, *specimen.shape[1:]), specimen.others(), specimen.build()
    if kind == "frozen":
        for p in [*model.parameters()][::3]:
            p.requires_grad_(False)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return Subject(model.double().train(), x, others)


@dataclass
class Trained:
    """What training has made: of the first step, and after the last."""

    outputs: list[Tensor]
    gradients: dict[str, Tensor]
    state: dict[str, Tensor]


def train(model: Any, x: Tensor, others: dict[str, Any], kind: str | None, steps: int) -> Trained:
    """Some steps; on workers the outputs are blocks. Without an optimiser only forward and backward, once."""
    optimizer = None if kind is None else OPTIMISERS[kind](p for p in model.parameters() if p.requires_grad)
    outputs: list[Tensor] = []
    gradients: dict[str, Tensor] = {}
    for number in range(steps):
        torch.manual_seed(number)
        model.zero_grad()
        with gridwise.sequential_random():
            made = [y for y in tree_leaves(model(x, **others)) if isinstance(y, Tensor)]
        learning = [y for y in made if y.requires_grad]
        torch.autograd.backward(learning, [y.detach() + 0.3 for y in learning])
        if not number:
            outputs = [y.detach() for y in made]
            gradients = {name: _whole(p, p.grad) for name, p in model.named_parameters() if p.grad is not None}
        if optimizer is not None:
            optimizer.step()
    whole = gridwise.nn.full_state_dict if hasattr(model, "P_x") else torch.nn.Module.state_dict
    return Trained(outputs, gradients, whole(model))


def _whole(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The global gradient of a parameter, on every worker."""
    if not is_cut(parameter):
        return gradient.clone()
    transport, sharding = gridwise.world().transport, parameter.sharding
    assert sharding is not None
    whole = gradient.new_zeros(sharding.shape)
    box = sharding.block(transport.rank)
    if box is not None:
        whole[box.slices] = gradient
    return transport.all_sum(whole, gridwise.world().team, "a gradient that is compared")


def check(name: str, once: bool) -> list[tuple[str, float, float, str]]:
    """For each optimiser and grid: how far it is off, what is allowed, or why it was refused. All workers enter."""
    torch.set_num_threads(1)
    subject, world = subject_of(name), gridwise.world()
    found: list[tuple[str, float, float, str]] = []
    models: dict[tuple[int, ...], Any] = {}
    rest = (1,) * (subject.x.dim() - 3)
    for kind in (None,) if once else OPTIMISERS:
        for grid in ((2, 1, 2, *rest), (BATCH, 1, 1, *rest)):
            P_x = world.create_cartesian_topology_partition(grid)
            label = f"{kind or 'gradients'} on {list(grid)}"
            try:
                if grid not in models:
                    models[grid] = gridwise.distribute(copy.deepcopy(subject.model), P_x, parameters="cut")
                models[grid].load_state_dict(subject.model.state_dict())
                ours = train(models[grid], gridwise.scatter(subject.x, P_x), subject.others, kind, 1 if once else 3)
            except GridwiseError as error:
                found.append((label, 0.0, 0.0, str(error).splitlines()[0]))
                continue
            partitions = tree_leaves(models[grid].P_y, is_leaf=lambda P: P is None or isinstance(P, gridwise.Partition))
            ours.outputs = [
                y if P is None else gridwise.gather(y, P) for y, P in zip(ours.outputs, partitions, strict=True)
            ]
            if world.rank == 0:
                found.append((label, *_judged(subject, ours, kind, 1 if once else 3), ""))
    return found


_known: dict[tuple[int, str | None, bool], Trained] = {}


def _judged(subject: Subject, ours: Trained, kind: str | None, steps: int) -> tuple[float, float]:
    """The error, and the one that is allowed."""

    def sequential(changed: bool) -> Trained:
        key = id(subject), kind, changed
        if key not in _known:
            noise = torch.randn(subject.x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
            x = subject.x * (1 + 1e-15 * noise) if changed else subject.x
            _known[key] = train(copy.deepcopy(subject.model), x, subject.others, kind, steps)
        return _known[key]

    error = difference(ours, sequential(False))
    allowed = EXACT if error <= EXACT else max(EXACT, SENSITIVITY * difference(sequential(True), sequential(False)))
    return error, allowed


def difference(a: Trained, b: Trained) -> float:
    """The largest difference, each relative to the largest number of its tensor."""
    if len(a.outputs) != len(b.outputs) or a.gradients.keys() != b.gradients.keys() or a.state.keys() != b.state.keys():
        return float("inf")
    pairs = [*zip(a.outputs, b.outputs, strict=True)]
    pairs += [(of[key], other[key]) for of, other in ((a.gradients, b.gradients), (a.state, b.state)) for key in of]
    worst = 0.0
    for x, y in pairs:
        if x.shape != y.shape:
            return float("inf")
        if y.numel():
            x, y = (t.to(torch.complex128) if t.is_complex() else t.double() for t in (x, y))
            apart = (x - y).abs().nan_to_num(nan=float("inf")).max()
            worst = max(worst, float(apart / y.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1e-3)))
    return worst


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--transport", default="gloo")
    options = parser.parse_args(given)
    names = options.names or [*([each.name for each in specimens()] if options.once else CHOSEN)]
    table = Table("model", "runs", "largest error", "outcome", title="cut parameters against the sequential model")
    wrong = False
    with Pool(4, options.transport) as pool:
        for name in names:
            try:
                rows = pool.run(check, name, options.once, timeout=1800)[0]
            except Exception as error:
                rows = [("", float("inf"), 0.0, f"{type(error).__name__}: {error}".splitlines()[0])]
            off = [
                f"{label}: {error:.1e}, allowed {allowed:.1e}" for label, error, allowed, _ in rows if error > allowed
            ]
            texts = dict.fromkeys(text for *_, text in rows if text)
            wrong = wrong or bool(off)
            outcome = "; ".join([*off, *texts]) or "equal"
            table.add_row(name, str(len(rows)), f"{max(row[1] for row in rows):.1e}", outcome)
            print(name, len(rows), f"{max(row[1] for row in rows):.1e}", outcome[:400], flush=True)
    Console(width=128).print(table)
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()
