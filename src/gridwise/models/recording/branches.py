"""Branches of the model's code of which one side only raises an error: ``assert``, and ``if bad: raise ...``.

The bytecode is followed from where a truth value was asked for, with that value as true and then as false: through
negations, variables, ``and`` and ``or``, and back into the callers that it is returned to. A side raises if all ways from
there do.
"""

from __future__ import annotations

import dis
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType, FrameType

STEPS = 2000
"""How many instructions are followed at most."""
IDLE = {"TO_BOOL", "NOP", "CACHE", "NOT_TAKEN", "RESUME", "EXTENDED_ARG", "PRECALL"}
PUSHING = {"LOAD_CONST": 1, "LOAD_GLOBAL": 1, "LOAD_NAME": 1, "LOAD_DEREF": 1, "LOAD_ASSERTION_ERROR": 1}
FAST = {
    "STORE_FAST": (True,), "LOAD_FAST": (False,), "LOAD_FAST_BORROW": (False,), "LOAD_FAST_CHECK": (False,),
    "STORE_FAST_LOAD_FAST": (True, False), "STORE_FAST_STORE_FAST": (True, True),
    "LOAD_FAST_LOAD_FAST": (False, False), "LOAD_FAST_BORROW_LOAD_FAST_BORROW": (False, False),
}  # fmt: skip
"""For each variable of an instruction, one or two since Python 3.13: whether it is stored, or else loaded."""


COMPARED = {
    "<": ("aten::lt", "aten::gt"), "<=": ("aten::le", "aten::ge"), ">": ("aten::gt", "aten::lt"),
    ">=": ("aten::ge", "aten::le"), "==": ("aten::eq",), "!=": ("aten::ne",),
}  # fmt: skip
"""What a comparison of a tensor calls; the other way round if the tensor stands on its right."""


def value_that_goes_on(frame: FrameType, is_result: bool, made_by: str = "") -> bool | None:
    """The truth value with which the code at hand in `frame` goes on, if with the other one it only raises; else None.

    With `is_result`, it is the result of the function that is called there; otherwise the code asks a tensor whether it is
    true, or a builtin does so on its behalf. `made_by` is the operator that has made the tensor.
    """
    place, after = _place_of(frame), _after_call(frame)
    if not is_result and _asks_result(_instructions(frame.f_code)[0][place], made_by):
        place += 1
    if after is not None and not is_result and not _is_asked_by_builtin(frame.f_code):
        return None
    raising = [truth for truth in (True, False) if _Walk(truth).raises(frame, after or place, after is None)]
    return not raising[0] if len(raising) == 1 else None


def _is_asked_by_builtin(code: CodeType) -> bool:
    """Whether a call in this code may be one that hands on the truth value of a tensor, and none hands on another."""
    names = set(code.co_names)
    return bool(names & {"bool", "all", "any"}) and not names & {"max", "min", "sorted", "filter", "next"}


@lru_cache(maxsize=256)
def _instructions(code: CodeType) -> tuple[Sequence[dis.Instruction], dict[int, int]]:
    found = list(dis.get_instructions(code))
    return found, {each.offset: place for place, each in enumerate(found)}


def _place_of(frame: FrameType) -> int:
    """The position of the instruction at hand; of a call, Python may note a place within its cache."""
    instructions, _ = _instructions(frame.f_code)
    return bisect_right(instructions, frame.f_lasti, key=lambda each: each.offset) - 1


def _after_call(frame: FrameType) -> int | None:
    """The position after the call at hand; None if the instruction at hand is none."""
    instructions, place = _instructions(frame.f_code)[0], _place_of(frame)
    place += instructions[place].opname == "PRECALL"  # of Python 3.11; it may have done the call by itself
    return place + 1 if instructions[place].opname.startswith("CALL") else None


class _Walk:
    """All ways from an instruction, with a truth value on top of the stack."""

    def __init__(self, truth: bool) -> None:
        self.truth, self.left = truth, STEPS

    def raises(self, frame: FrameType, place: int, is_first: bool) -> bool:
        """Whether all ways end in an error; at the first instruction a value that it pops is the known one."""
        instructions, _ = _instructions(frame.f_code)
        if is_first and not _decides(instructions[place]):
            return False
        is_kept = (
            is_first and place > 0 and instructions[place - 1].opname == "COPY"
        )  # of `and` and `or`, Python 3.12 on
        return self._follow(frame, place, [self.truth] * (2 if is_kept else 1), {}, set())

    def _follow(
        self,
        frame: FrameType,
        place: int,
        stack: list[bool | None],
        variables: dict[str, bool | None],
        visited: set[int],
    ) -> bool:
        instructions, places = _instructions(frame.f_code)
        while self.left:
            self.left -= 1
            each = instructions[place]
            name, place = each.opname, place + 1
            if name in IDLE:
                continue
            if name == "UNARY_NOT":
                top = _pop(stack)
                stack.append(None if top is None else not top)
            elif name in ("RAISE_VARARGS", "RERAISE"):
                return True
            elif name in ("RETURN_VALUE", "RETURN_CONST"):
                top = _pop(stack) if name == "RETURN_VALUE" else None
                return top is not None and self._returned(frame, top)
            elif _decides(each) or (_is_jump(each) and not name.startswith("JUMP")):
                keeps, wanted, to = "OR_POP" in name, "IF_TRUE" in name, places[each.argval]
                top = _pop(stack) if _decides(each) else None
                if top is None:  # of something else, for instance in a message, or a loop
                    if to not in visited:
                        visited.add(to)
                        if not self._follow(frame, to, [], dict(variables), visited):
                            return False
                    stack.clear()
                elif top == wanted:
                    place = to
                if keeps and top == wanted:
                    stack.append(top)
            elif _is_jump(each):
                place = places[each.argval]
                if place in visited:
                    return True
                visited.add(place)
            elif name == "COPY":
                stack.append(stack[-each.argval] if each.argval <= len(stack) else None)
            elif name == "POP_TOP":
                _pop(stack)
            elif name in FAST:
                names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
                for stores, variable in zip(FAST[name], names, strict=True):
                    if stores:
                        variables[variable] = _pop(stack)
                    else:
                        stack.append(variables.get(variable))
            elif name in PUSHING:
                stack.append(None)
            elif name in ("YIELD_VALUE", "RETURN_GENERATOR"):
                return False
            else:
                stack.clear()
                if "STORE_FAST" in name or "CLEAR" in name:  # several at once
                    variables.clear()
        return False

    def _returned(self, frame: FrameType, top: bool) -> bool:
        """Whether all ways raise from where a function has returned the truth value."""
        caller = frame.f_back
        if caller is None:
            return False
        place = _after_call(caller)
        return place is not None and self._follow(caller, place, [top], {}, set())


def _asks_result(each: dis.Instruction, made_by: str) -> bool:
    """Whether a comparison asks its own result, not an element of lists that it compares: those are asked for equality."""
    asks = each.opname == "COMPARE_OP" and each.argrepr.startswith("bool(")  # since Python 3.13, as in "bool(>=)"
    return asks and made_by in COMPARED.get(each.argval, ())


def _is_jump(each: dis.Instruction) -> bool:
    return each.opcode in dis.hasjrel or each.opcode in dis.hasjabs


def _decides(each: dis.Instruction) -> bool:
    """Whether an instruction is one that asks for a truth value."""
    name = each.opname
    return name in ("TO_BOOL", "UNARY_NOT") or ("JUMP" in name and ("IF_TRUE" in name or "IF_FALSE" in name))


def _pop(stack: list[bool | None]) -> bool | None:
    return stack.pop() if stack else None
