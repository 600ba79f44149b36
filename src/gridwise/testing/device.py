"""Tests on another device: tensors are created there, with the random numbers that the host would draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

RANDOM = frozenset({torch.rand, torch.randn, torch.randint, torch.randperm})


@contextmanager
def made_on(device: str) -> Iterator[None]:
    """Create tensors on `device` while the body runs, unless it names a device itself."""
    if device == "cpu":
        yield
        return
    with torch.device(device), _DrawnOnHost(device):
        yield


class _DrawnOnHost(TorchFunctionMode):
    """Random tensors come from the host's generators: the same numbers on every device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func not in RANDOM or options.get("device") is not None:
            return func(*args, **options)
        records = options.pop("requires_grad", False)
        drawn = func(*args, **options, device="cpu").to(self.device)
        return drawn.requires_grad_() if records else drawn
