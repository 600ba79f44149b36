"""A machine as a few numbers, from a small TOML file: how fast its workers compute, and how fast they communicate.

    name = "..."                    source = "where the numbers are from"           measured = true
    memory = "40GiB"                of a worker
    device = "cuda"                 what a worker computes with: "cpu" (if left out) or "cuda"; decides how memory is counted
    workers_per_node = 8            workers with consecutive ranks share a node
    memory_bandwidth = 1.0e12       bytes per second that a worker reads and writes while all others do too
    call_overhead = 1.0e-5          seconds that every operator takes, however small
    overlap = 0.0                   the share of communication that is hidden behind computing, 0 to 1
    row_columns = 0.0               how many extra columns each row of a convolution's output costs (if left out, 0)
    unroll_seconds = 0.0            seconds per element of a window that torch unrolls to convolve (if left out, 0)
    [flops.conv] float32 = 1.0e13   operations per second, by kind of operator (conv, matmul) and dtype
    [inside]                        between workers of one node: latency of a message in seconds, bandwidth in bytes per second
    exchange = 0.0                  seconds that an exchange takes besides its messages (if left out, 0)
    sum_latency                     seconds for each of the 2 log2(p) steps of a sum over p workers (if left out: latency)
    sum_bandwidth                   bytes per second of a sum (if left out: bandwidth)
    [between]                       the same between nodes

`gridwise doctor --calibrate` measures this machine and writes such a file. None in `machines/` is measured; each names its
source.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from math import ceil, log2
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..errors import PartitionError
from ..memory_sizes import number_of_bytes

Kind = TypeVar("Kind")
SHIPPED = Path(__file__).parent / "machines"
KINDS = ("conv", "matmul")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Link:
    """The link between two workers: seconds before the first byte of a message, and bytes per second."""

    latency: float
    bandwidth: float
    exchange: float = 0.0
    """Seconds that an exchange takes besides its messages, however many there are."""
    sum_latency: float | None = None
    """Of each step of a sum; None: that of a message. The same holds for the bandwidth."""
    sum_bandwidth: float | None = None


@dataclass(frozen=True)
class Machine:
    """How fast a machine computes and sends: the contents of a TOML file for `plan`.

    Parameters
    ----------
    name, source : what it is called, and where the figures come from
    measured : whether `gridwise doctor --calibrate` measured them
    memory, workers_per_node : bytes of each worker, and how many workers share a node
    memory_bandwidth, call_overhead : bytes per second, and seconds that every operator takes, however small
    overlap : the share of communication that is hidden behind computing, 0 to 1
    flops : operations per second, by kind of operator and dtype
    inside, between : latency and bandwidth within a node, and between nodes
    device : what a worker computes with, "cpu" or "cuda": decides how its memory is counted
    row_columns : how many extra columns each row of a convolution's output costs
    unroll_seconds : seconds per element of a window that torch unrolls to convolve

    Examples
    --------
    >>> machine = gridwise.plan(model, [1, 1], (4, 2)).time.machine
    >>> machine.measured
    False
    """

    name: str
    source: str
    measured: bool
    memory: int
    workers_per_node: int
    memory_bandwidth: float
    call_overhead: float
    overlap: float
    flops: Mapping[str, Mapping[str, float]]
    inside: Link
    between: Link
    device: str = "cpu"
    row_columns: float = 0.0
    unroll_seconds: float = 0.0

    def rate(self, kind: str, dtype: str) -> float:
        """Operations per second; those of float32 for a dtype that the file does not name."""
        rates = self.flops.get(kind) or next(iter(self.flops.values()))
        return rates.get(dtype) or rates["float32"]

    def link(self, ranks: Sequence[int]) -> Link:
        """The slowest link among these workers: that inside a node if they share one, else that between nodes."""
        nodes = {rank // self.workers_per_node for rank in ranks}
        return self.inside if len(nodes) == 1 else self.between

    def message_seconds(self, rank: int, peer: int, nbytes: int) -> float:
        link = self.link((rank, peer))
        return link.latency + nbytes / link.bandwidth

    def collective_seconds(self, team: Sequence[int], nbytes: int) -> float:
        """Seconds for a sum or a copy over a team in which this worker sends `nbytes`: up a tree and down again."""
        link = self.link(team)
        steps = 2 * ceil(log2(max(2, len(team))))
        return steps * (link.sum_latency or link.latency) + nbytes / (link.sum_bandwidth or link.bandwidth)

    def as_toml(self) -> str:
        """The machine as the text of a TOML file."""
        tables = {f"flops.{kind}": rates for kind, rates in self.flops.items()}
        tables |= {"inside": vars(self.inside), "between": vars(self.between)}
        lines = [f"{key} = {_toml(value)}" for key, value in vars(self).items() if isinstance(value, str | int | float)]
        for name, table in tables.items():
            values = {key: value for key, value in table.items() if value is not None}
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
        return "\n".join(lines) + "\n"


def find_machine(which: Machine | str | Path | None) -> Machine:
    """The machine of that name or in that file; for None, the one measured here, or else a cautious guess."""
    if isinstance(which, Machine):
        return which
    if which is None:
        here = calibrated_file()
        return read_machine(here) if here.exists() else read_machine(SHIPPED / "unknown.toml")
    path = Path(which)
    shipped = SHIPPED / f"{which}.toml"
    if path.suffix == ".toml":
        return read_machine(path)
    if shipped.exists():
        return read_machine(shipped)
    names = sorted(each.stem for each in SHIPPED.glob("*.toml"))
    raise PartitionError(
        f"plan: `machine` (={str(which)!r}) is no machine that is known.", names, "one of these, or a TOML file."
    )


def calibrated_file() -> Path:
    """Where `gridwise doctor --calibrate` writes its measurements."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "gridwise" / "machine.toml"


def read_machine(path: str | Path) -> Machine:
    """The machine described in a file, with every value checked.

    Parameters
    ----------
    path : a TOML file, as `gridwise doctor --calibrate` writes it

    Examples
    --------
    >>> machine = gridwise.plan(model, [1, 1], (4, 2)).time.machine
    >>> _ = Path("here.toml").write_text(machine.as_toml())
    >>> gridwise.planning.read_machine("here.toml") == machine
    True
    """
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PartitionError(f"plan: the machine in {path} cannot be read: {error}.") from error
    try:
        return _read(Machine, found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise PartitionError(
            f"plan: the machine in {path} cannot be read: {what}.\n  fix: see gridwise.costs.machine, or measure one "
            "with `gridwise doctor --calibrate`."
        ) from error


def _read(kind: type[Kind], found: Mapping[str, object]) -> Kind:
    """A `Machine` or a `Link` from its part of the file; values with a default may be left out."""
    names = [field.name for field in fields(kind) if field.default is MISSING or field.name in found]  # type: ignore[arg-type]
    values = {name: READERS[name](found[name]) for name in names}
    _refuse_others(found, values)
    return kind(**values)


def _refuse_others(found: Iterable[str], known: Iterable[str]) -> None:
    """What is misspelt would silently be left out."""
    others = sorted(set(found) - set(known))
    if others:
        raise ValueError(f"{', '.join(map(repr, others))} is not known")


def _positive(value: Any) -> float:
    number = float(value)
    if not 0 < number < float("inf"):
        raise ValueError(f"{value!r} has to be a number above 0")
    return number


def _workers(value: Any) -> int:
    number = _positive(value)
    if not number.is_integer():
        raise ValueError(f"`workers_per_node` (={value!r}) has to be a whole number above 0")
    return int(number)


def _not_negative(value: Any) -> float:
    return 0.0 if float(value) == 0 else _positive(value)


def _share(value: Any) -> float:
    if not 0 <= float(value) <= 1:
        raise ValueError(f"`overlap` (={value}) is a share, from 0 to 1")
    return float(value)


def _device(value: Any) -> str:
    if value not in DEVICES:
        raise ValueError(f"`device` (={value!r}) is none of {', '.join(DEVICES)}")
    return str(value)


def _rates(found: Any) -> dict[str, dict[str, float]]:
    rates = {kind: {name: _positive(rate) for name, rate in of.items()} for kind, of in found.items()}
    if not set(KINDS) <= rates.keys() or not all("float32" in rates[kind] for kind in KINDS):
        raise ValueError(f"[flops] needs float32 of each of {', '.join(KINDS)}")
    _refuse_others(rates, KINDS)
    for name in {name for of in rates.values() for name in of}:
        if not isinstance(getattr(torch, name, None), torch.dtype):
            raise ValueError(f"{name!r} is no dtype of torch")
    return rates


READERS: dict[str, Callable[[Any], Any]] = {
    "name": str,
    "source": str,
    "measured": lambda value: value is True,
    "memory": number_of_bytes,
    "workers_per_node": _workers,
    "overlap": _share,
    "device": _device,
    "flops": _rates,
    **dict.fromkeys(("inside", "between"), lambda found: _read(Link, found)),
    **dict.fromkeys(("row_columns", "unroll_seconds", "exchange"), _not_negative),
    **dict.fromkeys(
        ("memory_bandwidth", "call_overhead", "latency", "bandwidth", "sum_latency", "sum_bandwidth"), _positive
    ),
}
"""How each value of a file is checked and converted."""


def _toml(value: str | float) -> str:
    if isinstance(value, str):
        value = "".join(c if c.isprintable() else " " for c in value)
    return json.dumps(value, ensure_ascii=False)
