"""Checks of what a layer is constructed with (partitions, numbers, DistDL's order) and called with (tensors, transforms)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...errors import PartitionError, UnsupportedError
from ...partition import Partition
from ...torch_internals.modes import is_transformed
from ...torch_internals.tensors import is_strided


def need_partition(layer: str, name: str, given: object, axes: int | None = None) -> None:
    """Raise unless `given` is a partition, and not just workers in a row where a grid of several `axes` is needed."""
    in_a_row = axes is not None and axes > 1 and type(given) is Partition and given.dim == 1
    if isinstance(given, Partition) and not in_a_row:
        return
    has = f"workers {given.ranks} in a row" if isinstance(given, Partition) else repr(given)
    shape = "*shape" if axes is None else ", ".join("1" * axes)
    raise PartitionError(
        f"{layer}: `{name}` (={has}) must be a partition on a grid{'' if axes is None else f' of {axes} axes'}.",
        fix=f"{name} = gridwise.world().grid({shape}), with an extent above 1 for each dim that is cut.",
    )


def refuse_partitions(layer: str, arguments: Mapping[str, object], call: str) -> None:
    """Raise if a partition is passed for another argument: DistDL takes its partitions first, torch its numbers."""
    wrong = [name for name, value in arguments.items() if isinstance(value, Partition)]
    if wrong:
        are = "is a partition" if len(wrong) == 1 else "are partitions"
        names = " and ".join(f"`{name}`" for name in wrong)
        raise PartitionError(
            f"{layer}: {names} {are}, where a number belongs: `P_y` and `P_w` are keyword-only here.",
            fix=f"{layer}({call}, P_y=P_y, P_w=P_w).",
        )


def need_first_partition(layer: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise unless a layer whose first argument is `P_x` gets a partition there; Python counts arguments later."""
    names = layer.__init__.__code__.co_varnames  # type: ignore[misc]
    given = args[0] if args else kwargs.get("P_x")
    if names[1:2] != ("P_x",) or isinstance(given, Partition):
        return
    has = f" (={given!r})" if args or "P_x" in kwargs else ", which is missing,"
    raise PartitionError(
        f"{layer.__name__}: `P_x`{has} must be a partition: it comes before torch's own arguments.",
        fix="P_x = gridwise.world().grid(1, 1, 2, 2), say, with one extent for each dim of the input, "
        f"and then {layer.__name__}(P_x, ...).",
    )


def problem_with_tensor(input: Sequence[object], dense: bool = True) -> str | None:
    """What is wrong with the arguments of a call that must be one tensor, a dense one if `dense`; None if nothing is."""
    if len(input) != 1 or not isinstance(input[0], Tensor):
        given = ", ".join(type(x).__name__ for x in input) or "none"
        return f"needs one tensor as its positional argument, got {given}"
    x = input[0]
    if x.is_nested or (dense and (x.is_quantized or not is_strided(x))):
        kind = "a nested" if x.is_nested else "a quantized" if x.is_quantized else str(x.layout)
        return f"needs a dense tensor, got {kind} one"
    return None


def problem_with_sizes(dims: int, **sizes: object) -> str | None:
    """What is wrong with arguments that must be one whole number, or one for each dim of space; None if nothing is."""
    for name, given in sizes.items():
        each = given if isinstance(given, Sequence) and not isinstance(given, str) else [given] * dims
        if len(each) == dims and all(isinstance(number, Integral) for number in each):
            continue
        problem = f"`{name}` (={given!r}) must be a whole number, or {dims} of them"
        if isinstance(given, str):
            problem += (
                f"\n  fix: padding_mode={given!r} by its name: arguments are in torch's order, where it comes last"
            )
        return problem
    return None


def problem_with_inference(parameters: Iterable[Tensor | None], input: Sequence[Any]) -> str | None:
    """What is wrong with inference tensors where parameters need gradients: torch would raise on some workers only."""
    if not any(isinstance(x, Tensor) and x.is_inference() for x in input) or not torch.is_grad_enabled():
        return None
    if not any(p is not None and p.requires_grad for p in parameters):
        return None
    return (
        "got an inference tensor while its parameters need gradients\n  fix: clone the tensor outside of inference_mode"
    )


def refuse_transforms(module: torch.nn.Module, title: str, input: Sequence[Any]) -> None:
    """Raise under forward-mode differentiation or a transform of torch.func: messages support neither.

    Each worker raises by itself: the program is the same on all of them, and under a transform nothing can be agreed
    on, because a parameter that it has wrapped cannot be read.
    """
    if is_transformed():
        raise UnsupportedError(
            f"{title} cannot be transformed by torch.func (grad, vmap, jvp).\n  fix: use torch.autograd.grad or backward()."
        )
    if forward_ad._current_level < 0:
        return
    tensors = [x for x in (*input, *module.parameters(), *module.buffers()) if isinstance(x, Tensor)]
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise UnsupportedError(
            f"{title} has no forward-mode derivative.\n  fix: use torch.autograd.grad or backward()."
        )
