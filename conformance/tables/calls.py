"""What the cases of a table call, with torch alone: other libraries run them where Gridwise is not installed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from .table import Case, Shape

MOST = 2**18
"""Numbers in a tensor; of larger ones the longest dims of space are halved, so that a machine of 24 GiB runs all cases."""
SEED = 11


def merged_and_split(x: Tensor, shape: Shape) -> Tensor:
    """The last two dims merged, and all as before."""
    return x.reshape(*x.shape[:2], -1).view(shape)


def index_select(x: Tensor, dim: int, count: int) -> Tensor:
    return torch.index_select(x, dim, torch.arange(count) * 37 % (x.shape[dim] - 1))


def masked_error(x: Tensor, target: Tensor) -> Tensor:
    """A mean square over elements that a mask of the target chooses: two reductions, one of the other's result."""
    mask = target > 0
    return torch.mean(torch.sum(mask * (x - target) ** 2, (1,)) / torch.sum(mask))


def complex_and_back(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x))


OWN = {each.__name__: each for each in (merged_and_split, index_select, masked_error, complex_and_back)}
HOMES = {"torch": torch, "F": F, "Tensor": Tensor}


class Function(nn.Module):
    """A function as a module without parameters."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: Tensor) -> Any:
        return self.call(*tensors)


def module_of(case: Case, dtype: torch.dtype = torch.float64) -> nn.Module:
    """What is called, as a module; the same numbers in every process."""
    home, _, name = case.table.call.rpartition(".")
    settings = dict(case.arguments)
    if home or name in OWN:
        function = getattr(HOMES[home], name) if home else OWN[name]
        args = settings.pop("args", ())
        return Function(lambda *tensors: function(*tensors, *args, **settings))
    torch.manual_seed(SEED)
    module = getattr(nn, name)(**settings).to(dtype)
    if case.table.memory_format:
        module = module.to(memory_format=getattr(torch, case.table.memory_format))
    return module


def call_of(case: Case, shapes: Sequence[Shape], dtype: torch.dtype) -> tuple[Callable[..., Any], list[Tensor]]:
    """What is called as a function, and the parameters that it takes after its tensors."""
    module = module_of(case, dtype)
    names = [key for key, _ in module.named_parameters()]

    def call(*tensors: Tensor) -> Any:
        given = tensors[: len(shapes)]
        return functional_call(module, dict(zip(names, tensors[len(shapes) :], strict=True)), given)

    return call, list(module.parameters())


def smaller(shape: Shape) -> Shape:
    """The shape with its longest dims of space halved until it has at most so many numbers."""
    found = list(shape)
    while math.prod(found) > MOST:
        longest = max(range(2, len(found)), key=lambda dim: found[dim])
        found[longest] //= 2
    return tuple(found)


def tensors_of(case: Case, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """The tensors of a case; the same numbers in every process."""
    generator = torch.Generator().manual_seed(SEED)
    shapes = [smaller(shape) for shape in case.shapes]
    tensors = [torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) for shape in shapes]
    if case.table.memory_format:
        tensors = [x.contiguous(memory_format=getattr(torch, case.table.memory_format)) for x in tensors]
    return tensors
