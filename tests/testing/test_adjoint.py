"""The adjoint test works in double precision, whatever it is given."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gridwise.testing import check_adjoint, workers
from gridwise.testing.inner import CheckFailed


def product(x: Tensor) -> Tensor:
    return x @ torch.full((3, 3), 0.1, dtype=x.dtype)


@workers(1, 2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64, torch.complex64, torch.complex128])
def test_only_the_shapes_of_inputs_matter(dtype: torch.dtype) -> None:
    assert check_adjoint(product, torch.zeros(4, 3, dtype=dtype)) < 1e-12


@workers(1, 2)
def test_a_backward_that_drops_a_part_is_found() -> None:
    with pytest.raises(CheckFailed, match="not the adjoint"):
        check_adjoint(lambda x: product(x) + x.detach(), torch.zeros(4, 3, dtype=torch.complex64))
