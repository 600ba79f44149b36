"""The modules that a function of tensors calls, found in its closure, its defaults and the globals that it names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Set
from itertools import chain, count
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
import xxhash

from .recording.contents import PLAIN, is_foreign, is_own

SKIPPED = FunctionType, BuiltinFunctionType, ModuleType
"""What `constants_of` does not inspect."""


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
    """What a function reads and may change: numbers, strings and arrays by value, tensors and modules by identity.

    It reads what its code names: variables, the attributes of objects in them, and those of the object that it is a
    method of. The code of that object's methods counts as its own; other functions that it calls are not inspected.
    """
    functions, bound = _parts_of(function)
    found: list[tuple[str, Any]] = []
    if functions or bound:
        kinds = tuple({type(value) for _, value in bound if is_own(value)})
        names = frozenset().union(*[_names_read(each.__code__, kinds) for each in functions])
        visited: set[int] = set()
        for name, value in chain(bound, *map(_refers_to, functions)):
            _find_constants(name, value, names, found, visited)
    return tuple(found)


def _find_constants(name: str, value: object, names: Set[str], found: list[tuple[str, Any]], visited: set[int]) -> None:
    if isinstance(value, SKIPPED):
        return
    if isinstance(value, torch.Tensor | torch.nn.Module):
        found.append((name, id(value)))
    elif isinstance(value, np.ndarray):
        found.append((name, (value.shape, value.dtype.str, xxhash.xxh3_64_intdigest(value.tobytes()))))
    elif isinstance(value, list | tuple | dict | type) or is_own(value):
        if id(value) not in visited:
            visited.add(id(value))
            for key, part in enumerate(value) if isinstance(value, list | tuple) else _read(value, names):
                _find_constants(f"{name}.{key}", part, names, found, visited)
    elif isinstance(value, PLAIN):
        found.append((name, (type(value), repr(value) if isinstance(value, float | complex) else value)))


def _parts_of(function: Any) -> tuple[list[FunctionType], list[tuple[str, Any]]]:
    """The functions that a callable consists of, and the arguments that are bound to them."""
    functions, bound = list[FunctionType](), list[tuple[str, Any]]()
    while function is not None:
        if isinstance(function, functools.partial):
            bound += [*enumerate_named(function.args), *function.keywords.items()]
            function = function.func
        elif isinstance(function, MethodType):
            bound.append(("self", function.__self__))
            function = function.__func__
        elif isinstance(function, FunctionType):
            if not is_foreign(function):
                functions.append(function)
            function = getattr(function, "__wrapped__", None)
        else:
            bound.append(("self", function))
            method = type(function).__call__
            function = method if isinstance(method, FunctionType) else None
    return functions, bound


@functools.lru_cache
def _names_read(code: CodeType, kinds: tuple[type, ...]) -> frozenset[str]:
    """The names in a function's code, and in that of the methods and properties of `kinds` that it names."""
    names, left = set[str](), [code]
    while left:
        new = {*_names_in(left.pop())} - names
        names |= new
        for part in (getattr(kind, name, None) for kind in kinds for name in new):
            method = part.fget if isinstance(part, property) else part
            if isinstance(method, FunctionType):
                left.append(method.__code__)
    return frozenset(names)


def _read(value: Any, names: Set[str]) -> Iterator[tuple[Any, Any]]:
    """The items of a dict; the attributes among `names` of a class, or of an object and its class."""
    if isinstance(value, dict):
        yield from value.items()
        return
    kind = value if isinstance(value, type) else type(value)
    if kind is not value:
        asked = vars(value) if hasattr(kind, "__getattr__") else vars(value).keys() & names
        yield from ((name, vars(value)[name]) for name in sorted(asked))
    for each in kind.__mro__:
        if not is_foreign(each):
            yield from ((name, vars(each)[name]) for name in sorted(vars(each).keys() & names))


def _refers_to(function: object) -> Iterator[tuple[str, Any]]:
    if isinstance(function, functools.partial):
        yield "function", function.func
        yield from enumerate_named(function.args)
        yield from function.keywords.items()
    elif isinstance(function, MethodType):
        yield "self", function.__self__
        yield "function", function.__func__
    elif isinstance(function, FunctionType):
        if is_foreign(function):
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
    elif not is_foreign(type(function)):
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
