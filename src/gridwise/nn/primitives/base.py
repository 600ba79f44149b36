"""What the primitives share: a layer that is one linear operator, planned at set-up."""

from __future__ import annotations

from torch import Tensor

from ...comm.messages.wire_dtypes import SUMMED_AS
from ...partition import zero_volume_tensor
from ..engine.agreement import Structure
from ..engine.arguments import problem_with_tensor
from ..engine.module import Module
from ..engine.operator import Operator


class Primitive(Module):
    """A layer that applies one operator. A subclass makes it in `_distdl_module_setup` and passes it to `_plan`.

    Examples
    --------
    >>> issubclass(gridwise.nn.HaloExchange, Primitive)
    True
    """

    sums = False
    """Whether forward or backward adds numbers of different workers over the wire."""
    preserve_batch = False

    _keeps_plans = True

    def __init__(self) -> None:
        super().__init__()
        self._operator: Operator | None = None
        self._agreed: Structure | None = None

    def _plan(self, operator: Operator, agreed: Structure) -> None:
        self._operator, self._agreed = operator, agreed

    def _distdl_module_teardown(self, input: tuple[Tensor, ...]) -> None:
        self._operator = self._agreed = None

    def forward(self, input: Tensor) -> Tensor:
        if self._is_outside:
            return input.clone()
        assert self._operator is not None
        assert self._agreed is not None
        return self._move(self._agreed.convert(input), self._operator, self._agreed.requires_grad)

    def _nothing(self, x: Tensor) -> Tensor:
        """The zero-volume result of a worker that gets no part."""
        batch = x.shape[0] if self.preserve_batch and x.dim() else None
        return zero_volume_tensor(batch, dtype=x.dtype, device=x.device)

    def _problem_with(self, input: tuple[Tensor, ...]) -> str | None:
        problem = problem_with_tensor(input)
        if problem is None and self.sums and (x := input[0]).dtype not in SUMMED_AS and not x.is_complex():
            problem = f"cannot sum tensors of dtype {x.dtype}"
        return problem
