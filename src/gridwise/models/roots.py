"""The modules that a function of tensors calls, found in its closure, its defaults and the globals that it names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator
from itertools import chain, count
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

FOREIGN = ("torch", "gridwise", "builtins", "numpy", "functools")
"""Packages whose functions are not inspected."""


def roots_of(function: Callable[..., Any]) -> dict[str, torch.nn.Module]:
    """The modules that a function refers to, by the names under which it does."""
    found: dict[str, torch.nn.Module] = {}
    visited: set[int] = set()

    def visit(name: str, value: object) -> None:
        if id(value) in visited:
            return
        visited.add(id(value))
        if isinstance(value, torch.nn.Module):
            found[_free(name, found)] = value
        elif isinstance(value, list | tuple):
            for i, part in enumerate(value):
                visit(f"{name}_{i}", part)
        elif isinstance(value, dict):
            for key, part in value.items():
                visit(f"{name}_{key}", part)
        elif isinstance(value, functools.partial | MethodType | FunctionType) or (
            callable(value) and not isinstance(value, type) and hasattr(value, "__dict__")
        ):
            for key, part in _refers_to(value):
                visit(key, part)

    for name, value in _refers_to(function):
        visit(name, value)
    return found


def constants_of(function: Callable[..., Any]) -> tuple[Any, ...]:
    """What a function reads besides modules, and may change: numbers and strings by value, tensors by identity."""
    if not isinstance(function, FunctionType):
        return ()
    values = [(name, value) for name, value in _refers_to(function) if name != "wrapped"]
    return tuple(
        (name, id(value) if isinstance(value, torch.Tensor) else value)
        for name, value in values
        if value is None or isinstance(value, bool | int | float | str | torch.Tensor)
    )


def _refers_to(function: object) -> Iterator[tuple[str, Any]]:
    if isinstance(function, functools.partial):
        yield "function", function.func
        yield from enumerate_named(function.args)
        yield from function.keywords.items()
    elif isinstance(function, MethodType):
        yield "self", function.__self__
        yield "function", function.__func__
    elif isinstance(function, FunctionType):
        if function.__module__ and function.__module__.partition(".")[0] in FOREIGN:
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # not yet assigned
                continue
        for name in _names_in(function.__code__):
            if name in function.__globals__:
                yield name, function.__globals__[name]
        yield from enumerate_named(function.__defaults__ or ())
        yield from (function.__kwdefaults__ or {}).items()
        if hasattr(function, "__wrapped__"):
            yield "wrapped", function.__wrapped__
    elif type(function).__module__.partition(".")[0] not in FOREIGN:
        yield from vars(function).items()


def enumerate_named(values: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    return ((f"argument_{i}", value) for i, value in enumerate(values))


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _free(name: str, taken: Container[str]) -> str:
    plain = name.replace(".", "_")
    return next(each for each in chain([plain], (f"{plain}_{i}" for i in count())) if each not in taken)
