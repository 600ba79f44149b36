"""A value that exists only when a recorded step runs: it may be passed on, logged and returned; anything else is refused."""

from __future__ import annotations

from typing import Any, NoReturn

OPERATORS = (
    "bool", "len", "iter", "getitem", "contains", "str", "format", "fspath", "int", "float", "index", "neg", "abs", "lt", "le",
    "gt", "ge", "eq", "ne", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "mod", "pow",
)  # fmt: skip


class StandIn:
    """Stands for such a value; `_refuse` of a kind says what to do."""

    def _refuse(self, *_: object) -> NoReturn:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    __hash__ = object.__hash__


for _name in OPERATORS:
    setattr(StandIn, f"__{_name}__", lambda self, *others: self._refuse())
