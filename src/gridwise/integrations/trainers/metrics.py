"""What a step logs, and what it gives to metrics: events of a recorded step, which are done after each run of it.

self.acc(y, labels); self.log("acc", self.acc); self.log("loss", loss)

recorded   [("acc", "forward", (y, labels), {}), ("self", "log", ("acc", the metric acc), {}), ("self", "log", ...)]
each run   the same calls, with whole tensors on every worker: metrics and logs are the same everywhere
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from ...errors import UnsupportedError
from ...models.recording.containers import Branch, Constant, Tree, flatten, unflatten
from .stand_ins import StandIn

Event = tuple[str, str, tuple[Any, ...], dict[str, Any]]
"""Whose method, by the metric's place in the module or "self", its name, and its arguments."""


class MetricSeen(torch.nn.Module):
    """In the place of a metric, while a step is recorded."""

    def __init__(self, path: str, note: Callable[[Event], int]) -> None:
        super().__init__()
        self.path = path
        self.__dict__["_note"] = note

    def forward(self, *args: Any, **kwargs: Any) -> ValueSeen:
        return ValueSeen(self._note((self.path, "forward", args, kwargs)), self.path)

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._note((self.path, "update", args, kwargs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattr__(name)
        return _refuse(f"`{self.path}.{name}`")


class ValueSeen(StandIn):
    """What a metric returns, while a step is recorded: it may be logged."""

    def __init__(self, event: int, path: str) -> None:
        self.event, self.path = event, path

    def __repr__(self) -> str:
        return f"the result {self.event} of {self.path}"

    def _refuse(self, *_: object) -> NoReturn:
        _refuse(f"what `{self.path}` returns")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValueSeen):
            self._refuse()
        return (self.event, self.path) == (other.event, other.path)

    __hash__ = object.__hash__


def _refuse(what: str) -> NoReturn:
    raise UnsupportedError(
        f"{what} is used in a step. Metrics see whole tensors, after the step.\n  fix: in the step, call a metric, or its "
        "`update`, and `self.log` the metric or what it returns; compute with it in a hook such as on_validation_epoch_end."
    )


class Metrics:
    """The metrics of a module: by their places, with what stands for them while a step is recorded."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.found: dict[str, torch.nn.Module] = {}
        self.places: list[tuple[dict[str, Any], str, MetricSeen]] = []
        self.events: list[Event] = []
        self._visit(module, "")

    def _visit(self, module: torch.nn.Module, prefix: str) -> None:
        for name, value in vars(module).items():
            parts = (
                value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
            )
            if name != "_modules" and any(map(is_metric, parts)):
                raise UnsupportedError(
                    f"GridStrategy: `{prefix}{name}` has metrics that the module does not know as its parts.",
                    fix="torch.nn.ModuleList or ModuleDict in place of the list or dict.",
                )
        held: dict[str, Any] = module._modules
        for name, child in held.items():
            if is_metric(child):
                path = f"{prefix}{name}"
                self.found[path] = child
                self.places.append((held, name, MetricSeen(path, self._note)))
            elif child is not None:
                self._visit(child, f"{prefix}{name}.")

    def _note(self, event: Event) -> int:
        self.events.append(event)
        return len(self.events) - 1

    def log(self, *args: Any, **kwargs: Any) -> None:
        """In the place of `self.log`."""
        self._note(("self", "log", args, kwargs))

    def log_dict(self, *args: Any, **kwargs: Any) -> None:
        """In the place of `self.log_dict`."""
        self._note(("self", "log_dict", args, kwargs))

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Let the module have the stand-ins."""
        real = [held[name] for held, name, _ in self.places]
        try:
            for held, name, seen in self.places:
                held[name] = seen
            yield
        finally:
            for (held, name, _), metric in zip(self.places, real, strict=True):
                held[name] = metric

    def do(self, module: torch.nn.Module, events: Sequence[Event]) -> None:
        """Make the calls of a step, with whole tensors."""
        results: list[Any] = []
        for path, method, args, kwargs in events:
            target = module if path == "self" else self.found[path]
            args, kwargs = self._with_real((args, kwargs), results)
            call = target if method == "forward" else getattr(target, method)
            results.append(call(*args, **kwargs))

    def _with_real(self, value: Any, results: Sequence[Any]) -> Any:
        """Arguments with metrics and their results in place of what stood for them."""

        def find(part: Any) -> Any:
            if isinstance(part, ValueSeen):
                return results[part.event]
            if isinstance(part, MetricSeen):
                return self.found[part.path]
            if type(part) in (list, tuple):
                return type(part)(map(find, part))
            return {key: find(each) for key, each in part.items()} if type(part) is dict else part

        def changed(tree: Tree) -> Tree:
            if isinstance(tree, Branch):
                return Branch(tree.kind, tree.keys, tuple(map(changed, tree.parts)), tree.attributes)
            return Constant(find(tree.value)) if isinstance(tree, Constant) else tree

        tensors, tree = flatten(value)
        return unflatten(changed(tree), tensors)


def is_metric(value: object) -> bool:
    kinds = sys.modules.get("torchmetrics")  # a value of a class that nobody has imported is none of it
    return kinds is not None and isinstance(value, kinds.Metric | kinds.MetricCollection)


def without_sync(module: torch.nn.Module) -> None:
    """Let the metrics of a module not be summed over workers: each of them has seen everything."""
    for part in module.modules():
        if is_metric(part) and hasattr(part, "sync_on_compute"):
            part.distributed_available_fn, part.sync_on_compute = _no, False  # type: ignore[assignment]


def _no() -> bool:
    return False
