"""A copy of a model whose blocks are recomputed in backward, for a plan of what checkpointing would save."""

from __future__ import annotations

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from .one_step import meta_copy


def checkpointed(model: torch.nn.Module) -> torch.nn.Module:
    """A meta copy in which every block is recomputed: the children of the model, and those of its lists and dicts."""
    copied = meta_copy(model)
    _recompute_children(copied)
    return copied


def _recompute_children(module: torch.nn.Module) -> None:
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            _recompute_children(child)
        elif any(True for _ in child.children()) or isinstance(module, torch.nn.Sequential):
            child.forward = partial(checkpoint, child.forward, use_reentrant=False)
