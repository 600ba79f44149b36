"""Random numbers of a model: drawn when torch would draw them, or refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.testing import workers

from .equality import compare_on_threads
from .of_functions import Of


def test_small_probabilities_are_not_rounded() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1])
    x = torch.full((1 << 16,), 2.0**-12, dtype=torch.bfloat16)
    assert gridwise.distribute(lambda x: torch.bernoulli(x), P)(x).sum() < 64
    assert bool(gridwise.distribute(lambda x: torch.bernoulli(x), P)(torch.ones_like(x)).all())


def test_dropout_without_a_mode_is_on() -> None:
    P, x = gridwise.world().create_cartesian_topology_partition([1, 1]), torch.ones(16, 16)
    for train in (None, True):
        y, mask = gridwise.distribute(lambda x, train=train: torch.native_dropout(x, 0.5, train), P)(x)
        assert torch.equal(y, 2.0 * mask)
        assert 0 < mask.sum() < mask.numel()


DISTRIBUTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "around a mean": lambda x: torch.normal(x, 1.0),
    "around means": lambda x: torch.normal(x, x.abs()) + torch.normal(0.0, x.abs()),
    "exponential": lambda x: x * torch.empty_like(x).exponential_(2.0) + F.gumbel_softmax(x, dim=0),
    "others": lambda x: (
        x.new_empty(x.shape).cauchy_() + torch.empty_like(x).log_normal_().log() + x.detach().geometric_(0.4)
    ),
    "integers": lambda x: x * torch.empty_like(x).random_(9),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, True) + F.feature_alpha_dropout(x, 0.3, True),
    "categories": lambda x: x.abs().multinomial(3) + x.abs().multinomial(5, True).sum(1, keepdim=True),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_any_distribution_is_drawn(name: str) -> None:
    """Torch's own numbers for comparisons, and else the same numbers on all grids."""
    x = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    model = Of(lambda m, x: DISTRIBUTIONS[name](x))
    for grid in ((2, 1), (1, 3)):
        errors, _ = compare_on_threads(model, [x], grid, gather="refuse")
        assert max(errors.values()) < 1e-12, errors


def test_complex_numbers_are_refused() -> None:
    P, x = gridwise.world().create_cartesian_topology_partition([1]), torch.ones(4, dtype=torch.complex64)
    for function in (lambda x: torch.rand_like(x), lambda x: torch.randn_like(x)):
        model = gridwise.distribute(function, P)
        with pytest.raises(UnsupportedError, match=r"torch\.complex64"):
            model(x)
        with gridwise.sequential_random():
            assert model(x).imag.any()


SEEDED: dict[str, Callable[[Tensor], Tensor]] = {
    "fork_rng": lambda x: _forked(x),
    "a state that is restored": lambda x: _restored(x),
    "a seed": lambda x: _seeded(x),
    "a generator of its own": lambda x: x + torch.rand(4, 6, generator=torch.Generator().manual_seed(5)),
    "a generator in place": lambda x: x + torch.empty(4, 6).normal_(generator=torch.Generator().manual_seed(5)),
}


def _forked(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return x + torch.rand(4, 6)


def _restored(x: Tensor) -> Tensor:
    state = torch.get_rng_state()
    torch.manual_seed(5)
    y = x + torch.rand(4, 6)
    torch.set_rng_state(state)
    return y


def _seeded(x: Tensor) -> Tensor:
    torch.default_generator.manual_seed(5)
    return x + torch.rand(4, 6)


@pytest.mark.parametrize("name", SEEDED)
def test_seeds_and_generators_in_forward_are_refused(name: str) -> None:
    P, x = gridwise.world().create_cartesian_topology_partition([1, 1]), torch.ones(4, 6)
    with pytest.raises(
        UnsupportedError, match=r"(fork_rng|generator).* would be lost in a recording:  test_random\.py"
    ):
        gridwise.distribute(SEEDED[name], P)(x)


def test_torchs_own_generator_may_be_named() -> None:
    P, x = gridwise.world().create_cartesian_topology_partition([1, 1]), torch.ones(4, 6)
    model = gridwise.distribute(lambda x: x + torch.rand(4, 6, generator=torch.default_generator), P)
    for _ in range(2):
        with gridwise.sequential_random():
            torch.manual_seed(3)
            y = model(x)
        torch.manual_seed(3)
        assert torch.equal(y, x + torch.rand(4, 6))


ORDERED: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout, permuted": lambda x: F.dropout(x.permute(2, 0, 1), 0.5),
    "dropout, part of permuted": lambda x: F.dropout(x[:, :3, :3].transpose(0, 2), 0.5),
    "dropout, expanded": lambda x: F.dropout(x[:, :1].expand(-1, 6, -1).transpose(0, 1), 0.5),
    "bernoulli, permuted": lambda x: torch.bernoulli(x.permute(2, 0, 1).sigmoid()),
    "rand_like, permuted": lambda x: torch.rand_like(x.permute(2, 0, 1)),
    "randn_like, part of permuted": lambda x: torch.randn_like(x[:, ::2].permute(2, 0, 1)),
}


@workers(2, transports=("mpi",))
def test_sequential_numbers_come_in_torchs_order() -> None:
    x = torch.randn((4, 6, 8), generator=torch.Generator().manual_seed(0))
    for i, (name, function) in enumerate(ORDERED.items()):
        P = gridwise.world().create_cartesian_topology_partition(((1, 1, 2), (2, 1, 1))[i % 2])
        model = gridwise.distribute(function, P)
        torch.manual_seed(3)
        expected = function(x)
        with gridwise.sequential_random():
            torch.manual_seed(3)
            y = model(x[gridwise.local_slice(P, x.shape)])
        assert torch.equal(y, expected[gridwise.local_slice(model.P_y, expected.shape)]), name


@workers(4, transports=("mpi",))
def test_rrelu_draws_by_global_indices() -> None:
    """The same slopes on every grid; gradients are the slopes."""
    x, world, found = -torch.rand((4, 6, 8), generator=torch.Generator().manual_seed(0)) - 1, gridwise.world(), []
    x[0] = 2.0
    for grid in ((1, 1, 4), (2, 2, 1), (4, 1, 1)):
        for inplace in (False, True):
            P = world.create_cartesian_topology_partition(grid)
            model = gridwise.distribute(lambda x, inplace=inplace: F.rrelu(x * 1, 0.1, 0.3, True, inplace), P)
            torch.manual_seed(3)
            mine = x[gridwise.local_slice(P, x.shape)].clone().requires_grad_()
            y = model(mine)
            y.sum().backward()
            torch.testing.assert_close(mine.grad * mine, y)
            found.append(gridwise.gather(mine.grad, P))
    if world.rank == 0:
        assert all(torch.equal(slopes, found[0]) for slopes in found)
        assert bool((found[0][0] == 1).all())
        assert bool(((found[0][1:] >= 0.1) & (found[0][1:] < 0.3)).all())
        assert len(found[0].unique()) > 100
    with gridwise.sequential_random(), pytest.raises(UnsupportedError, match="draws slopes of negative elements only"):
        model(mine)
    P = gridwise.Partition(world.transport, P.geometry)
    whole = gridwise.distribute(lambda x: F.rrelu(x, 0.1, 0.3, True), P.create_cartesian_topology_partition((4,)), x=P)
    with gridwise.sequential_random():
        torch.manual_seed(3)
        y = whole(x)
    torch.manual_seed(3)
    assert torch.equal(y, F.rrelu(x, 0.1, 0.3, True)[gridwise.local_slice(whole.P_y, x.shape)])
    model = gridwise.distribute(lambda x: F.rrelu(x, 0.1, 0.3), world.create_cartesian_topology_partition((4, 1, 1)))
    torch.testing.assert_close(model(mine), F.rrelu(mine, 0.1, 0.3))


@workers(2, transports=("mpi",))
def test_drawn_numbers_pass_zeros_as_gradients() -> None:
    """As in torch, where drawing by probabilities, or into a tensor, is differentiable."""
    P, x = gridwise.world().create_cartesian_topology_partition([2, 1]), torch.rand(4, 3)
    for function in (
        lambda x: torch.bernoulli(x),
        lambda x: (x * 2).bernoulli_(0.5),
        lambda x: (x * 2).uniform_(),
        lambda x: (x * math.nan).bernoulli_(0.5),
    ):
        mine = x[gridwise.local_slice(P, x.shape)].clone().requires_grad_()
        y = gridwise.distribute(function, P)(mine)
        y.sum().backward()
        assert mine.grad is not None
        whole = x.clone().requires_grad_()
        function(whole).sum().backward()
        torch.testing.assert_close(mine.grad, whole.grad[gridwise.local_slice(P, x.shape)], equal_nan=True)
