"""Arguments and results of operators: values, possibly nested in lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def leaves(*nested: object) -> Iterator[object]:
    """The innermost values, in order."""
    for item in nested:
        if isinstance(item, list | tuple):
            yield from leaves(*item)
        elif isinstance(item, dict):
            yield from leaves(*item.values())
        else:
            yield item


def tensors_in(*nested: object) -> Iterator[Tensor]:
    """The tensors among the innermost values, in order."""
    return (item for item in leaves(*nested) if isinstance(item, Tensor))


def mapped(change: Callable[[Any], Any], nested: Any) -> Any:
    """The same nesting with `change` applied to every value; a named tuple counts as one value."""
    if isinstance(nested, dict):
        return {name: mapped(change, item) for name, item in nested.items()}
    if isinstance(nested, list | tuple) and not hasattr(nested, "_fields"):
        return type(nested)([mapped(change, item) for item in nested])
    return change(nested)
