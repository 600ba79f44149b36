"""The nodes that backward runs, their order, gradients in one message, and the norm that torch clips them by."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gridwise.torch_internals import autograd
from gridwise.torch_internals.autograd import (
    at_end_of_backward,
    backward_number,
    current_node,
    differentiated_now,
    flattened,
    function_of,
    is_mean,
    next_number,
    number_of,
    replace_total_norm,
    run_last,
    total_norm_by_torch,
    unflattened,
)


def test_nodes_have_numbers_in_the_order_of_forward() -> None:
    x = torch.ones(1, requires_grad=True)
    before = next_number()
    y = x.sin()
    z = y.cos()
    assert (number_of(y.grad_fn), number_of(z.grad_fn), next_number()) == (before, before + 1, before + 2)


def test_the_node_that_runs_is_known_in_backward_only() -> None:
    x, seen = torch.ones(1, requires_grad=True), list[Any]()
    y = x.sin()
    y.register_hook(lambda gradient: seen.append(current_node()))
    assert current_node() is None
    (2 * y).sum().backward()
    assert seen[0] is not None
    assert current_node() is None


class Noted(torch.autograd.Function):
    order: list[str] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        ctx.name = name
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        Noted.order.append(ctx.name)
        return gradient, None


def test_a_node_runs_last_of_those_that_could() -> None:
    for first in (False, True):
        x = torch.ones(1, requires_grad=True)
        Noted.order.clear()
        a, b = Noted.apply(x, "a"), Noted.apply(x, "b")
        if first:
            run_last(b.grad_fn)
        (a + b).sum().backward()
        assert Noted.order == (["a", "b"] if first else ["b", "a"])


def test_what_is_differentiated_is_known_in_backward_only() -> None:
    x, seen = torch.ones(1, requires_grad=True), list[list[Tensor]]()
    y = x.sin()
    y.register_hook(lambda gradient: seen.append(differentiated_now()))
    loss, other = y.sum(), y.cos().sum()
    loss.backward(retain_graph=True)
    torch.autograd.grad([other], [x])
    assert [[id(each) for each in roots] for roots in seen] == [[id(loss)], [id(other)]]
    assert differentiated_now() == []


def test_nodes_of_means_and_of_functions_are_known() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    means = [x.mean(), x.mean((0, 1)), torch.nn.functional.mse_loss(x, torch.zeros(2, 3))]
    others = [x.sum(), x.mean(0), torch.nn.functional.mse_loss(x, torch.zeros(2, 3), reduction="sum"), x.sin()]
    assert [is_mean(y.grad_fn) for y in means] == [True] * 3
    assert [is_mean(y.grad_fn) for y in others] == [False] * 4
    assert function_of(Noted.apply(x, "a").grad_fn) is Noted
    assert function_of(x.sin().grad_fn) is None


def test_tensors_in_one_and_back() -> None:
    tensors = [torch.arange(6.0).view(2, 3).t(), torch.ones(()), torch.zeros(0, 2)]
    flat = flattened(tensors)
    assert flat.tolist() == [0, 3, 1, 4, 2, 5, 1]
    back = unflattened(flat, tensors)
    assert all(map(torch.equal, back, tensors))
    flat.zero_()
    assert float(back[0].sum()) == 0.0, "views"
    alone = torch.ones(3)
    assert flattened([alone]).data_ptr() != alone.data_ptr(), "a copy, even of one"


def test_torch_clips_by_the_norm_that_replaces_its_own() -> None:
    clipping, public = torch.nn.utils.clip_grad._get_total_norm, torch.nn.utils.get_total_norm
    assert total_norm_by_torch([torch.full((4,), 2.0)]).item() == 4.0
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    asked: list[Any] = []

    def norm(tensors: Any, *rest: Any) -> Tensor:
        asked.append((len(list(tensors)), *rest))
        return torch.tensor(100.0)

    try:
        replace_total_norm(norm, norm)
        assert torch.nn.utils.clip_grad_norm_([parameter], 50.0).item() == 100.0
        assert torch.nn.utils.get_total_norm([torch.ones(1)]).item() == 100.0
    finally:
        replace_total_norm(clipping, public)
    assert asked == [(1, 2.0, False, None), (1,)]
    assert abs(parameter.grad[0].item() - 0.5) < 1e-5
    assert autograd.clip_grad._get_total_norm is clipping


def test_the_number_of_a_backward_and_its_end() -> None:
    seen: list[Any] = []

    def noted(gradient: Tensor) -> None:
        seen.append(backward_number())
        at_end_of_backward(lambda: seen.append((backward_number() >= 0, "end")))

    x = torch.ones(2, requires_grad=True)
    y = x.sin()
    y.register_hook(noted)
    x.register_hook(lambda gradient: seen.append(backward_number()))
    for _ in range(2):
        y.sum().backward(retain_graph=True)
    (first, same, (_, end)), (second, *_) = seen[:3], seen[3:]
    assert first == same != second
    assert end == "end"
    assert backward_number() == -1
