"""A value that each worker has for itself."""

from __future__ import annotations

from typing import Any

from ...errors import CheckpointMismatch

RULES = ("refuse", "keep", "wrap")


class PerWorker:
    """A value that each worker has for itself: a generator, the position of a data loader. Workers may differ in it.

    Parameters
    ----------
    value : anything that a state may hold
    when_resized : what `load` does if the number of workers differs from that of the save. 'refuse' raises; 'keep'
        leaves every worker the value that it has; 'wrap' gives worker i that of worker i modulo the saved number.

    Examples
    --------
    >>> checkpoint.save(path, {"model": model, "rng": checkpoint.PerWorker(torch.default_generator)})
    """

    def __init__(self, value: Any, when_resized: str = "refuse") -> None:
        if when_resized not in RULES:
            raise CheckpointMismatch(
                f"`when_resized` (={when_resized!r}) must be one of {', '.join(map(repr, RULES))}."
            )
        self.value = value
        self.when_resized = when_resized

    def __repr__(self) -> str:
        return f"PerWorker({self.value!r}, when_resized={self.when_resized!r})"
