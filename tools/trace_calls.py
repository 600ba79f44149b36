"""Which files of Gridwise a call enters, in order, and how often it switches from one to another.

    python tools/trace_calls.py            the walks of ARCHITECTURE.md, on two workers: one line each
    python tools/trace_calls.py --files    and the files, in the order in which they are entered first

A reader follows a call from file to file: the number of files is how many have to be opened, the number of switches (calls
from one file into another) how often the reader changes between them. Calls into the geometry (`grid/`), whose functions
are named after what they compute, are left out. A file of which only functions of a single statement ran, such as a
property or "does anything special apply? no", is counted apart, as *asked*. Worker 0 is traced; its other threads are not.
"""

from __future__ import annotations

import argparse
import ast
import functools
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import gridwise
from gridwise import checkpoint, nn, tagi

PACKAGE = Path(str(gridwise.__file__)).parent
LEAVES = str(PACKAGE / "grid")
PARTS = ("<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


@dataclass
class Walk:
    """One call: what it is, the files that it enters, in order, and the switches between files."""

    name: str
    most: dict[str, int] = field(default_factory=dict)
    """For each file, the most statements that a call of one of its functions ran, as far as they were counted: to 2."""
    switches: int = 0

    @property
    def files(self) -> list[str]:
        return [file for file, statements in self.most.items() if statements > 1]

    @property
    def asked(self) -> list[str]:
        return [file for file, statements in self.most.items() if statements <= 1]


class Tracer:
    """Records calls that lead into another file of the package, and the statements that each call runs."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self._last = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(str(PACKAGE)) or file.startswith(LEAVES):
            return None
        name, most = str(Path(file).relative_to(PACKAGE)), self.walk.most
        if file != self._last:
            most.setdefault(name, 0)
            self.walk.switches += bool(self._last)
            self._last = file
        if frame.f_code.co_name in PARTS or most[name] > 1:
            return None
        ran, statements = set[int](), statements_of(file)

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                ran.add(statements.get(frame.f_lineno, frame.f_lineno))
                most[name] = max(most[name], len(ran))
            return line

        return line


@functools.cache
def statements_of(file: str) -> dict[int, int]:
    """The first line of the statement that each line belongs to."""
    found: dict[int, int] = {}
    for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):  # outer statements come first
        if isinstance(node, ast.stmt):
            found |= dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), node.lineno)
    return found


@contextmanager
def traced(name: str, walks: list[Walk]) -> Iterator[None]:
    walks.append(Walk(name))
    sys.settrace(Tracer(walks[-1]))
    try:
        yield
    finally:
        sys.settrace(None)


def convolution() -> list[Walk]:
    """A 3 x 3 convolution of images that are cut along their rows: the first call, which plans, and a later one."""
    walks: list[Walk] = []
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    layer = nn.DistributedConv2d(P_x, 4, 4, 3, padding=1)
    x = torch.randn(2, 4, 8, 16, requires_grad=True)
    with traced("convolution, first call", walks):
        y = layer(x)
    y.sum().backward()
    layer(x).sum().backward()
    with traced("convolution, forward", walks):
        y = layer(x)
    loss = y.sum()
    with traced("convolution, backward", walks):
        loss.backward()
    return walks


def parameters(folder: str) -> list[Walk]:
    """A model of two layers, saved and loaded by both workers."""
    walks: list[Walk] = []
    P_x = gridwise.world().create_cartesian_topology_partition([1, 2, 1, 1])
    model = torch.nn.Sequential(nn.DistributedBatchNorm2d(P_x, 4), nn.DistributedPReLU(P_x, 4))
    with traced("parameter, save", walks):
        checkpoint.save(Path(folder) / "state", {"model": model})
    with traced("parameter, load", walks):
        checkpoint.load(Path(folder) / "state", into={"model": model})
    return walks


def innovation() -> list[Walk]:
    """A network on a batch x space grid: one training step after another."""
    walks: list[Walk] = []
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    layers = (
        tagi.nn.Conv2d(1, 2, 3, padding=1, in_width=8, in_height=8),
        tagi.nn.ReLU(),
        tagi.nn.AvgPool2d(2, 2),
        tagi.nn.Linear(32, 1),
    )
    net = tagi.on_grid(tagi.nn.Sequential(*layers), P_x)
    x, y = torch.rand(4, 1, 4, 8), torch.rand(2, 1)  # rows of all images; the observations of this worker's samples
    updater = tagi.nn.OutputUpdater("cpu")

    def step() -> None:
        net(x)
        updater.update(net.output_z_buffer, y, torch.full_like(y, 0.1), net.input_delta_z_buffer)
        net.backward()
        net.step()

    with traced("innovation, first step", walks):
        step()
    step()
    with traced("innovation, a step", walks):
        step()
    return walks


def model() -> list[Walk]:
    """A small network through `distribute`, its first call, and a later one."""
    walks: list[Walk] = []
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 2, 1])
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 3),
    )
    x = torch.randn(2, 1, 4, 8)
    with traced("model, distribute", walks):
        spread = gridwise.distribute(network, P_x)
    with traced("model, first call", walks):
        spread(x)
    spread(x).sum().backward()
    with traced("model, forward", walks):
        y = spread(x)
    loss = y.sum()
    with traced("model, backward", walks):
        loss.backward()
    return walks


def every_walk(folder: str) -> list[Walk]:
    torch.manual_seed(0)
    return convolution() + parameters(folder) + innovation() + model()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="list the files of each walk")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        walks = gridwise.launch(every_walk, folder, workers=2)[0]
    for walk in walks:
        print(f"{walk.name:26} {len(walk.files):3} files {walk.switches:6} switches {len(walk.asked):4} asked")
        if given.files:
            print(*(f"    {file}" for file in walk.files), sep="\n")
            print(*(f"    ({file})" for file in walk.asked), sep="\n")


if __name__ == "__main__":
    main()
