"""Maximum pooling by pairs of rows, and linear interpolation by whole rows, are torch's: values, gradients, and of those."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from gridwise.nn.windows.max_pool_by_two import LEAST, max_of_pairs, takes

POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


def shapes(dims: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(1, 2)] * 2, *[st.integers(2, 7)] * dims)


def numbers(shape: tuple[int, ...], seed: int, values: int = 0) -> Tensor:
    """Random ones; with `values`, of so many different values, so that there are ties."""
    generator = torch.Generator().manual_seed(seed)
    if values:
        return torch.randint(values, shape, generator=generator).double()
    return torch.randn(shape, dtype=torch.float64, generator=generator)


class TestMaxOfPairs:
    @settings(deadline=None)
    @given(st.integers(1, 3).flatmap(shapes), st.integers(0, 999), st.sampled_from((0, 2, 4)))
    def test_values_and_gradients_are_those_of_torch_ties_included(
        self, shape: tuple[int, ...], seed: int, values: int
    ) -> None:
        dims, x = len(shape) - 2, numbers(shape, seed, values).requires_grad_()
        y, expected = max_of_pairs(x, dims), POOLS[dims](x, 2)
        assert torch.equal(y, expected)
        dy = numbers(tuple(y.shape), seed + 1)
        found, wanted = (torch.autograd.grad(each, x, dy)[0] for each in (y, expected))
        assert torch.equal(found, wanted)
        with torch.no_grad():
            assert torch.equal(max_of_pairs(x, dims), expected)

    def test_the_last_nan_of_a_window_gets_the_gradient_as_in_torch(self) -> None:
        nan = float("nan")
        for window in ([nan, 1, 2, 3], [1, nan, 2, 3], [1, nan, nan, 3], [nan, nan, 1, nan], [1, 2, nan, 0]):
            x = torch.tensor(window).view(1, 1, 2, 2).requires_grad_()
            found, wanted = (torch.autograd.grad(f(x).sum(), x)[0] for f in (lambda x: max_of_pairs(x, 2), F_pool))
            assert torch.equal(found, wanted), window

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_gradients_that_are_not_finite_stay_where_they_belong(self, dtype: torch.dtype) -> None:
        x = torch.arange(8, dtype=dtype).view(1, 1, 2, 4).requires_grad_()
        dy = torch.tensor([float("inf"), float("nan")], dtype=dtype).view(1, 1, 1, 2)
        (dx,) = torch.autograd.grad(max_of_pairs(x, 2), x, dy)
        assert dx.isfinite().sum() == 6
        assert dx[0, 0, 1, 1].isinf()
        assert dx[0, 0, 1, 3].isnan()

    def test_gradients_of_gradients(self) -> None:
        x = numbers((1, 2, 5, 6), 0).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: max_of_pairs(x, 2), (x,))
        assert torch.autograd.gradgradcheck(lambda x: max_of_pairs(x, 2), (x,))

    def test_what_torch_does_faster_or_cannot_be_looked_at_is_left_to_it(self) -> None:
        image = torch.zeros(1, 8, 64, LEAST // 512)
        assert takes(image)
        assert not takes(image[..., :4])
        assert not takes(image.contiguous(memory_format=torch.channels_last))
        assert not takes(image.half())
        assert not takes(image.to("meta"))


def F_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 2)
