"""A copy of a model whose blocks are computed again in backward: what checkpointing would save, for a plan."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from .one_step import without_numbers


class Recomputed(torch.nn.Module):
    """A module that keeps its inputs, and nothing else, for backward."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.inner, *args, use_reentrant=False, **kwargs)


def checkpointed(model: torch.nn.Module) -> torch.nn.Module:
    """A copy, without numbers, in which every block is recomputed: the children of the model, and those of its lists."""
    copied = without_numbers(model)
    _wrap(copied)
    return copied


def _wrap(module: torch.nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            _wrap(child)
        elif any(True for _ in child.children()) or isinstance(module, torch.nn.Sequential):
            module._modules[name] = Recomputed(child)
