"""Calls of `torch.utils.checkpoint`, whose functions models import by name: what they call in turn is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch.utils.checkpoint

GENERATORS = ("_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant_generator_impl")
"""They run up to their `yield` before the checkpointed function does, and on after it; the second since torch 2.14."""


@contextmanager
def checkpoints_noted(
    around: Callable[[bool], AbstractContextManager[object]], reentrant: Callable[..., Any]
) -> Iterator[None]:
    """While the body runs, checkpointed functions are not recomputed, but called within ``around(preserve)``.

    `preserve` says whether a recomputation draws the same random numbers. Those with ``use_reentrant=True`` are called
    by ``reentrant(preserve, function, *args)``.
    """

    def checkpointed(function: object, *rest: Any, **named: Any) -> Iterator[None]:
        with around(named["preserve_rng_state"] if "preserve_rng_state" in named else rest[0]):
            yield

    def apply(function: Callable[..., Any], preserve: bool, *args: object) -> Any:
        return reentrant(preserve, function, *args)

    module = torch.utils.checkpoint
    with ExitStack() as stack:
        stack.enter_context(patch.object(module, "CheckpointFunction", SimpleNamespace(apply=apply)))
        for name in GENERATORS:
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, checkpointed))
        yield
