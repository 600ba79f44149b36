"""Every kind of operator on blocks equals itself on the whole tensor: values, gradients, buffers; uneven and empty blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridwise
from gridwise.errors import UnsupportedError
from gridwise.grid import Grid, Layout
from gridwise.models.placing import place
from gridwise.testing import check_rule, workers

from .equality import Expected, compare, compare_on_threads, recorded
from .operators import CASES, LISTED, has_rule, register_erfcx

GRIDS = [(1, 1, 2, 2), (4, 1, 1, 1), (2, 2, 1, 1), (1, 1, 1, 4)]
SHAPES = [(2, 4, 6, 8), (3, 4, 5, 3)]


class Of(nn.Module):
    """A function of an input and of three parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        generator = torch.Generator().manual_seed(5)
        self.w = nn.Parameter(torch.randn(6, 4, 3, 3, dtype=torch.float64, generator=generator) / 6)
        self.b = nn.Parameter(torch.randn(6, dtype=torch.float64, generator=generator))
        self.c = nn.Parameter(torch.randn(4, dtype=torch.float64, generator=generator))
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("var", torch.ones(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def input_of(shape: Sequence[int]) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()


def differences(
    function: Callable[..., Any], shape: Sequence[int], grids: Sequence[Any], layout: Layout | None = None
) -> dict[Any, Any]:
    """What differs, by grid."""
    x = input_of(shape)
    expected, wrong = Expected(Of(function), [x]), {}
    for grid in grids:
        errors, _ = compare_on_threads(nn.Identity(), [x], grid, layout and [layout], expected=expected)
        found = {name: error for name, error in errors.items() if not error < 1e-10}
        if found:
            wrong[grid] = found
    return wrong


@pytest.mark.parametrize("kind", sorted(CASES))
def test_operators_equal_the_sequential_ones(kind: str) -> None:
    for i, function in enumerate(CASES[kind]):
        assert not differences(function, SHAPES[i % 2], [GRIDS[0], GRIDS[1 + i % 3]]), (kind, i)


@pytest.mark.soak
@pytest.mark.parametrize("kind", sorted(CASES))
def test_operators_on_all_grids(kind: str) -> None:
    for i, function in enumerate(CASES[kind]):
        for shape in SHAPES:
            assert not differences(function, shape, GRIDS), (kind, i, shape)


@workers(4)
def test_one_of_each_on_real_workers() -> None:
    on_cuda = torch.get_default_device().type == "cuda"
    for kind, functions in CASES.items():
        if kind == "random" and on_cuda:  # torch's numbers come in another order there than one after the other
            continue
        errors, _ = compare(Of(functions[0]), [input_of((2, 4, 6, 5))], (1, 1, 2, 2))
        assert max(errors.values()) < 1e-10, (kind, errors)


def test_blocks_of_the_users_own_cuts() -> None:
    layout = Layout(Grid((0, 1, 2), (1, 1, 3, 1)), ((0, 2), (0, 4), (0, 0, 5, 7), (0, 6)))
    for kind in ("windows", "norms", "views", "reductions"):
        for i, function in enumerate(CASES[kind]):
            assert not differences(function, (2, 4, 7, 6), [(1, 1, 3, 1)], layout), (kind, i)


def test_a_write_through_a_view_that_would_move_is_refused() -> None:
    def turned(m: Any, x: Tensor) -> Tensor:
        y = x * 1
        y.view(-1).add_(1)
        return y

    with pytest.raises(UnsupportedError, match="view"):
        differences(turned, (2, 4, 6, 8), [(1, 1, 2, 2)])


def test_slopes_of_channels_are_not_those_of_columns() -> None:
    """As many channels as columns: which dim a slope belongs to shows only where one of them is cut."""
    for grid in ((1, 1, 1, 4), (1, 4, 1, 1)):
        assert not differences(lambda m, x: F.prelu(x, m.c), (2, 4, 3, 4), [grid])


def test_what_has_no_rule_is_gathered_and_reported_or_refused() -> None:
    def reduced(m: Any, x: Tensor) -> Tensor:
        return torch.segment_reduce(x.relu(), "sum", lengths=torch.tensor([1, 1]))

    x = input_of((2, 4, 6, 8))
    errors, program = compare_on_threads(Of(reduced), [x], (1, 1, 2, 2))
    assert max(errors.values()) < 1e-10
    (gather,) = program.report.gathers
    assert (gather.bytes, gather.has_rule) == (x.nbytes, False)
    assert "segment_reduce" in str(program.report)
    assert "test_rules.py" in gather.line
    with pytest.raises(UnsupportedError, match="segment_reduce"):
        compare_on_threads(Of(reduced), [x], (1, 1, 2, 2), gather="refuse")


MOVED: dict[str, tuple[Any, int]] = {  # of 2 4 6 8 numbers, rows cut by 2: for the first worker
    "a convolution": (lambda m, x: F.conv2d(x, x.new_ones(4, 4, 3, 3), padding=1), 1 * 64),
    "a transposed convolution": (lambda m, x: F.conv_transpose2d(x, x.new_ones(4, 4, 3, 3), padding=1), 1 * 64),
    "a pool": (lambda m, x: F.max_pool2d(x, 3, 1), 2 * 64 - 64),
    "a part of the rows": (lambda m, x: x[:, :, 2:] * 1, 1 * 64),
    "a sum over what is cut": (lambda m, x: x.cumsum(2), 4 * 3 * 8),
    "nothing": (lambda m, x: x.sin(), 0),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_a_worker_receives_is_reported(name: str) -> None:
    function, expected = MOVED[name]
    _, program = compare_on_threads(Of(function), [input_of((2, 4, 6, 8))], (1, 1, 2, 1))
    assert program.report.moved == expected * 8


@workers(2, transports=["mpi"])
def test_a_rule_of_ones_own() -> None:
    def scaled(x: Tensor) -> Tensor:
        return torch.special.erfcx(x)

    register_erfcx()
    check_rule(scaled, torch.linspace(0, 2, 30, dtype=torch.float64).reshape(5, 6))
    with pytest.raises(UnsupportedError, match="gather"):
        check_rule(lambda x: torch.cumsum(x, 0), torch.rand(1 << 16, dtype=torch.float64))


def test_replicated_inputs_and_outputs_count_once() -> None:
    """A number that every worker holds goes in and comes out: gradients are those of one backward."""

    class Scaled(nn.Module):
        def forward(self, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
            return (x * scale).mean(), scale.exp()

    scale = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    errors, program = compare_on_threads(Scaled(), [input_of((2, 3, 4, 4)), scale], (1, 1, 2, 2))
    assert max(errors.values()) < 1e-12
    assert not program.report.gathers


@workers(4, transports=["mpi"])
def test_gradients_of_gradients() -> None:
    """A penalty on the gradient of the input: the adjoints of movements are differentiated again."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(1), nn.Linear(72, 3)).double()
    P = gridwise.world().create_cartesian_topology_partition((1, 1, 2, 2))
    layout, whole = Layout.balanced(P.geometry, (2, 2, 4, 6)), input_of((2, 2, 4, 6))
    program = place(recorded(model, [whole]), [layout], P)
    held = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}

    def penalty(y: Tensor, x: Tensor) -> Tensor:
        (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return g.square().sum()

    penalty(model(whole), whole).backward()
    mine = layout.block(P.transport.rank).slices
    x = whole.detach()[mine].clone().requires_grad_()
    (y,) = program(held, {}, [x])
    penalty(y, x).backward()
    assert x.grad is not None
    assert whole.grad is not None
    torch.testing.assert_close(x.grad, whole.grad[mine])
    for name, value in model.named_parameters():
        torch.testing.assert_close(held[name].grad, value.grad)


def test_every_operator_of_the_list_has_a_rule() -> None:
    assert not [name for name in LISTED if not has_rule(name)]


def test_a_norm_before_tokens_of_one_sample() -> None:
    """The gradient comes with its dims in another order, of blocks with one sample each: torch's kernel misreads those."""

    def tokens(m: Any, x: Tensor) -> Tensor:
        y = F.batch_norm(x, None, None, m.c, m.c.sin(), True)
        t = y.reshape(x.shape[0], 4, -1).transpose(1, 2)
        return t + F.linear(t, m.w[:4, :, 0, 0])

    assert not differences(tokens, (2, 4, 6, 2), [(2, 1, 2, 1), (2, 1, 1, 2)])


def test_losses_are_one_number() -> None:
    def loss(m: Any, x: Tensor) -> Tensor:
        target = torch.arange(math.prod(x.shape) // 4).reshape(x.shape[0], *x.shape[2:]) % 4
        target[0, 0] = -100
        plain = F.cross_entropy(x, target) + F.cross_entropy(x, target, m.c.detach().exp())
        return plain + F.mse_loss(x, x.detach() * 0.5) + F.binary_cross_entropy_with_logits(x, x.detach().sigmoid())

    assert not differences(loss, (2, 4, 6, 8), [(1, 1, 2, 1), (2, 1, 1, 1), (1, 2, 1, 2)])


COMPOSITES: dict[str, Callable[..., Any]] = {
    "mse_loss": lambda m, x: F.mse_loss(x, x.detach().sin()),
    "mse_loss with a weight": lambda m, x: F.mse_loss(x, x.detach().sin(), weight=x.detach().abs()),
    "l1_loss": lambda m, x: F.l1_loss(x, x.detach().sin(), reduction="sum"),
    "smooth_l1_loss": lambda m, x: F.smooth_l1_loss(x, x.detach().sin()),
    "huber_loss": lambda m, x: F.huber_loss(x, x.detach().sin(), delta=0.3),
    "margin_ranking_loss": lambda m, x: F.margin_ranking_loss(x, x.sin(), x.detach().sign()),
    "hinge_embedding_loss": lambda m, x: F.hinge_embedding_loss(x, x.detach().sign()),
    "cosine_embedding_loss": lambda m, x: F.cosine_embedding_loss(
        x.flatten(1), x.flatten(1).cos(), torch.ones(x.shape[0])
    ),
    "triplet_margin_loss": lambda m, x: F.triplet_margin_loss(x, x.sin(), x.cos()),
    "cosine_similarity": lambda m, x: F.cosine_similarity(x, x.sin(), 1),
    "pairwise_distance": lambda m, x: F.pairwise_distance(x, x.sin()),
    "broadcast_tensors": lambda m, x: sum(torch.broadcast_tensors(x, x[:, :1], m.c.view(-1, 1, 1))),
    "arccos": lambda m, x: torch.arccos(x.tanh()) + torch.special.expit(x) + torch.special.xlog1py(x, x.abs()),
    "hstack": lambda m, x: torch.hstack([x, x.sin()]),
    "atleast_3d": lambda m, x: torch.atleast_3d(x[:, 0, 0], x)[0] + torch.atleast_1d(x.sum()),
    "lstm_cell": lambda m, x: cell(m, x),
}


def cell(m: Any, x: Tensor) -> Tensor:
    rows = x.mean((2, 3))
    h, c = torch.lstm_cell(rows, (rows.sin(), rows.cos()), m.w.reshape(54, 4)[:16], m.w.reshape(54, 4)[16:32])
    return h * c


@pytest.mark.parametrize("name", COMPOSITES)
def test_what_torch_puts_together_from_others_needs_no_rule_of_its_own(name: str) -> None:
    """Nothing is gathered: it is recorded as what it consists of."""
    x = input_of((3, 4, 5, 6))
    errors, _ = compare_on_threads(Of(COMPOSITES[name]), [x], (1, 1, 2, 2), gather="refuse")
    assert max(errors.values()) < 1e-10, errors


def test_a_composite_that_autocast_knows_is_recorded_whole_under_autocast() -> None:
    class Under(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                y = x.bfloat16()
                return F.cosine_embedding_loss(y.flatten(1), y.flatten(1).cos(), torch.ones(x.shape[0]))

    x = input_of((2, 4, 4, 4)).detach()
    names = {str(node.target) for node in recorded(Under(), [x]).module.graph.nodes}
    assert "aten.cosine_embedding_loss.default" in names
    errors, _ = compare_on_threads(Under(), [x], (1, 1, 2, 1))
    assert max(errors.values()) < 1e-3


def test_random_numbers_do_not_depend_on_the_grid() -> None:
    """Without `sequential_random` too: the same numbers on one worker and on four."""

    class Drops(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5, True) + torch.rand_like(x) + torch.randn(x.shape[-1], dtype=x.dtype)

    from .threads import on_threads

    x = torch.ones(2, 3, 4, 6, dtype=torch.float64)
    recording, found = recorded(Drops(), [x]), {}
    for grid in ((1, 1, 1, 1), (1, 1, 2, 2), (2, 1, 1, 2)):

        def run(transport: Any, grid: Any = grid) -> Tensor:
            P = gridwise.CartesianPartition(transport, Grid(tuple(range(transport.size)), grid))
            layout = Layout.balanced(P.geometry, x.shape)
            torch.manual_seed(11)
            (y,) = place(recording, [layout], P)({}, {}, [x[layout.block(transport.rank).slices]])
            return y

        blocks = on_threads(math.prod(grid), run)
        layout = Layout.balanced(Grid(tuple(range(math.prod(grid))), grid), x.shape)
        whole = torch.empty_like(x)
        for rank, block in layout.blocks():
            whole[block.slices] = blocks[rank]
        found[grid] = whole
    first, *others = found.values()
    assert all(torch.equal(first, other) for other in others)
    assert 0.2 < (first > 2).double().mean() < 0.8
