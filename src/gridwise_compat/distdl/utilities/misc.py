"""A dict with attribute access, and a stand-in for the context of an autograd function."""

from __future__ import annotations

from typing import Any


class Bunch(dict):
    """A dict whose entries can also be used as attributes."""

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None

    def __setattr__(self, key: str, value: object) -> None:
        self[key] = value


class DummyContext(Bunch):
    """A context that accepts the calls of an autograd function."""

    def save_for_backward(self, *tensors: Any) -> None:
        self["saved_tensors"] = tensors

    def mark_dirty(self, *tensors: Any) -> None: ...

    def mark_non_differentiable(self, *tensors: Any) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...
