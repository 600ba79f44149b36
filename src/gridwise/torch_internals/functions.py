"""Calls of autograd Functions: their `forward`, as torch looks it up in each call, however `apply` was obtained.

Torch's ``apply``, which may have been bound long before, takes `forward` and `setup_context` as attributes of the class. A
property of the metaclass comes before what the class has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

Method = Callable[..., Any]
Noted = Callable[[type[torch.autograd.Function], Method], Method]


@contextmanager
def functions_noted(forward: Noted, setup_context: Noted) -> Iterator[None]:
    """While the body runs, let torch call ``forward(cls, method)`` in place of the method of a Function.

    So with `setup_context`, for Functions that have one of their own.
    """
    inherited = torch.autograd.Function.setup_context

    def own_context(function: type[torch.autograd.Function], method: Method) -> Method:
        return method if method is inherited else setup_context(function, method)  # torch compares it with its own

    with ExitStack() as stack:
        for lookup in (_Lookup("forward", forward), _Lookup("setup_context", own_context)):
            stack.enter_context(patch.object(type(torch.autograd.Function), lookup.name, lookup, create=True))
        yield


class _Lookup:
    """A property of the metaclass of Functions: what a static method of theirs is."""

    def __init__(self, name: str, noted: Noted) -> None:
        self.name, self.noted = name, noted

    def __get__(self, function: Any, metaclass: type) -> Any:
        found = next(vars(kind)[self.name] for kind in function.__mro__ if self.name in vars(kind))
        method = found.__get__(None, function) if hasattr(found, "__get__") else found
        return self.noted(function, method) if issubclass(function, torch.autograd.Function) else method

    def __set__(self, function: object, value: object) -> None:
        metaclass = type(torch.autograd.Function)
        delattr(metaclass, self.name)
        try:
            setattr(function, self.name, value)
        finally:
            setattr(metaclass, self.name, self)
