"""Views in place, and views of memory: equal to the sequential model on blocks, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gridwise
from gridwise.errors import UnsupportedError

from .equality import Expected, compare_on_threads


class Of(nn.Module):
    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("held", torch.ones(6, 4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def after(change: Callable[[Tensor], Any], make: Callable[[Tensor], Tensor] = lambda x: x * 1) -> Callable[..., Tensor]:
    """A tensor that is changed by a method whose result is not used."""

    def function(m: Any, x: Tensor) -> Tensor:
        y = make(x)
        change(y)
        return y.sin()

    return function


def seen_through_a_view(m: Any, x: Tensor) -> Tensor:
    y = x.detach() * 1
    z = y.unsqueeze(0)
    y.t_()
    z.mul_(2)
    return y + 1


def turned_and_written(m: Any, x: Tensor) -> Tensor:
    y = (x * 1).transpose_(0, 1)
    y[1:].add_(1)
    return y * 2


def spectrum(x: Tensor, **given: Any) -> Tensor:
    return torch.stft(x, 4, 2, window=torch.hann_window(4, dtype=x.dtype), return_complex=True, **given)


def back(m: Any, x: Tensor) -> Tensor:
    return torch.istft(spectrum(x) * 2, 4, 2, window=torch.hann_window(4, dtype=x.dtype))


EQUAL: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "transpose_": after(lambda y: y.transpose_(0, 1)),
    "t_": after(lambda y: y.t_()),
    "unsqueeze_ and squeeze_": after(lambda y: y.unsqueeze_(0).squeeze_(0).unsqueeze_(-1)),
    "swapaxes_": after(lambda y: y.swapaxes_(0, 1).swapdims_(0, 1)),
    "resize_": after(lambda y: y.resize_(4, 6), lambda x: x.detach().sin()),
    "resize_ of a permuted tensor": after(lambda y: y.resize_(4, 6), lambda x: x.detach().sin().t()),
    "resize_ to fewer": after(lambda y: y.resize_(3, 4), lambda x: x.detach().sin()),
    "resize_as_": after(lambda y: y.resize_as_(torch.ones(24)), lambda x: x.detach().sin()),
    "as_strided_": after(lambda y: y.as_strided_((3, 2), (1, 2), 1)),
    "as_strided of a permuted tensor": lambda m, x: (x * 1).t().as_strided((2, 3), (1, 2)),
    "as_strided of an input": lambda m, x: x.t().as_strided((2, 3), (1, 2)),
    "as_strided of a part": lambda m, x: (x * x)[1:].as_strided((5, 2), (2, 3)),
    "a diagonal of memory": lambda m, x: (x * x).as_strided((4,), (5,)),
    "windows": lambda m, x: (x * x).as_strided((6, 3, 2), (4, 1, 1)),
    "fewer windows": lambda m, x: (x * x).as_strided((6, 1, 2), (4, 2, 1)),
    "windows of a permuted tensor": lambda m, x: (x * x).t().as_strided((4, 5, 2), (6, 1, 1)),
    "seen through a view": seen_through_a_view,
    "turned and written": turned_and_written,
    "stft": lambda m, x: torch.view_as_real(spectrum(x)),
    "stft of what is there": lambda m, x: torch.view_as_real(spectrum(x, center=False)),
    "istft": back,
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_to_the_sequential_model(name: str) -> None:
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    x = x.T.contiguous() if "istft" in name else x
    expected = Expected(Of(EQUAL[name]), [x.requires_grad_()])
    for grid in ((1, 1), (2, 1), (1, 2)):
        errors, _ = compare_on_threads(nn.Identity(), [x], grid, expected=expected)
        assert max(errors.values()) < 1e-12, (grid, errors)


def test_windows_stay_on_blocks() -> None:
    x = torch.randn(4, 4096, dtype=torch.float64)
    _, program = compare_on_threads(Of(lambda m, x: (x * 1).as_strided((4, 2047, 4), (4096, 2, 1)) * 2), [x], (2, 1))
    assert not program.report.gathers
    assert not program.report.moved


REFUSED: dict[str, tuple[str, Callable[[Any, Tensor], Tensor]]] = {
    "an input": (
        r"unsqueeze_, test_memory_views\.py:.* shape of a tensor that was given",
        lambda m, x: x.unsqueeze_(0) * 2,
    ),
    "an input, by size": (r"resize_, .* shape of a tensor that was given", lambda m, x: x.resize_(24) * 2),
    "an input that was written to": ("t_, .* shape of a tensor that was given", lambda m, x: x.add_(1).t_() * 2),
    "a buffer": ("transpose_, .* shape of a tensor that was given", lambda m, x: m.held.transpose_(0, 1) @ x),
    "an input that takes other memory": (
        r"set_\.\w+, .* other memory to a tensor that was given",
        lambda m, x: x.set_(torch.ones(3, dtype=x.dtype)) * 2,
    ),
    "a buffer that takes other memory": ("other memory to a tensor", lambda m, x: m.held.set_(x * 2) + 1),
    "memory without numbers": ("resize_", lambda m, x: (x * 1).resize_(30) * 2),
    "memory that is written to": ("memory that is written to", lambda m, x: (x * 1).as_strided((4,), (5,)).add_(1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    words, function = REFUSED[name]
    model = gridwise.distribute(Of(function), gridwise.world().create_cartesian_topology_partition([1, 1]))
    x = torch.ones(6, 4, dtype=torch.float64)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=words):
            model(x)
    assert x.shape == (6, 4)
    assert model.held.shape == (6, 4)
