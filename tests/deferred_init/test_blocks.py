"""Blocks of deferred tensors equal the same slice of the eager tensor, bit for bit, in memory for the block."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gridwise.deferred_init import deferred_init, materialize_module, materialize_shard, reason_for_whole
from gridwise.deferred_init.random import fills, streams
from gridwise.errors import PartitionError
from gridwise.grid import Grid, Layout

from .architectures import gpt2
from .equality import as_bytes

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INITS: dict[str, Callable[[Tensor], Any]] = {
    "uniform": lambda t: nn.init.uniform_(t, -2, 3),
    "normal": lambda t: nn.init.normal_(t, 1, 0.3),
    "trunc_normal": nn.init.trunc_normal_,
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "kaiming_uniform": nn.init.kaiming_uniform_,
    "kaiming_normal": nn.init.kaiming_normal_,
    "constant": lambda t: nn.init.constant_(t, 0.3),
    "row of zeros": lambda t: t.normal_()[t.shape[0] // 2].zero_(),
    "some rows": lambda t: t.uniform_()[t.shape[0] // 3 : t.shape[0] // 2].normal_(0, 2),
    "a corner": lambda t: t.uniform_()[1:, : t.shape[1] // 2 + 1].mul_(7),
    "arithmetic": lambda t: t.normal_().mul_(2).add_(1).exp_().clamp_(max=3).neg_(),
    "elementwise on two": lambda t: t.copy_(torch.rand_like(t) * torch.randn(t.shape[-1]).to(t.dtype) + t.normal_()),
}


def random_case(chooser: random.Random) -> tuple[list[int], tuple[slice, ...]]:
    shape = [chooser.choice([1, 2, 3, 5, 8, 13, 16, 17, 33, 64, 100]) for _ in range(chooser.randint(2, 4))]
    ends = [sorted((chooser.randint(0, n), chooser.randint(0, n))) for n in shape]
    return shape, tuple(slice(a, b) for a, b in ends)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("init", INITS)
def test_random_slices(init: str, dtype: torch.dtype) -> None:
    """25 of them for each of 13 initialisers and 4 dtypes: 1,300 slices."""
    chooser = random.Random(f"{init} {dtype}")
    for seed in range(25):
        shape, slices = random_case(chooser)

        def build(shape: list[int] = shape) -> Tensor:
            torch.randn(3)
            t = torch.empty(shape, dtype=dtype)
            INITS[init](t)
            return t

        torch.manual_seed(seed)
        eager = build()
        torch.manual_seed(seed)
        deferred = deferred_init(build)
        assert reason_for_whole(deferred) is None
        block = materialize_shard(deferred, slices)
        assert block.is_contiguous()
        assert as_bytes(block) == as_bytes(eager[slices]), (shape, slices)


@pytest.mark.parametrize("scratch", [64, 1 << 20])
def test_any_size_of_scratch_gives_the_same(scratch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fills, "SCRATCH", scratch)
    monkeypatch.setattr(fills, "GAP", scratch // 2)
    torch.manual_seed(0)
    eager = torch.randn(7, 9, 41)
    torch.manual_seed(0)
    deferred = deferred_init(torch.randn, 7, 9, 41)
    for slices in ((slice(2, 5),), (slice(None), slice(3, 7)), (slice(1, 6), slice(2, 8), slice(7, 30))):
        assert torch.equal(materialize_shard(deferred, slices), eager[slices])


@pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.double, lambda m: m.to(torch.bfloat16)])
def test_blocks_of_a_cast_model(cast: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)
    eager = cast(nn.Linear(40, 24))
    torch.manual_seed(0)
    model = cast(deferred_init(nn.Linear, 40, 24))
    assert reason_for_whole(model.weight) is None
    block = materialize_shard(model.weight, (slice(3, 20), slice(10, 31)))
    assert isinstance(block, nn.Parameter)
    assert torch.equal(block, eager.weight[3:20, 10:31])


@pytest.mark.parametrize("init", [nn.init.orthogonal_, lambda t: nn.init.sparse_(t, 0.5)])
def test_initialisers_that_need_the_whole_tensor_say_so_and_are_right(init: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    eager = init(torch.empty(80, 90))
    torch.manual_seed(0)
    deferred = deferred_init(lambda: init(torch.empty(80, 90)))
    assert reason_for_whole(deferred)
    assert torch.equal(materialize_shard(deferred, (slice(8, 11), slice(40, 90))), eager[8:11, 40:90])


@pytest.mark.parametrize("dim", [0, -1])
def test_a_model_of_three_workers(dim: int) -> None:
    """The blocks of all workers, put together, are the eager model; tied weights stay tied."""

    def build() -> nn.Module:
        return gpt2(vocabulary=311, context=16, d=24, layers=2)

    torch.manual_seed(0)
    eager = build()
    parts = []
    for rank in range(3):

        def layout(name: str, shape: torch.Size, rank: int = rank) -> tuple[slice, ...]:
            n = shape[dim]
            cut = slice(n * rank // 3, n * (rank + 1) // 3)
            return (slice(None),) * (dim % len(shape)) + (cut,)

        torch.manual_seed(0)
        model = deferred_init(build)
        materialize_module(model, layout=layout)
        assert model["head"].weight is model["wte"].weight
        assert type(model["head"].weight) is nn.Parameter
        parts.append(dict(model.named_parameters()) | dict(model.named_buffers()))
    for name, tensor in [*eager.named_parameters(), *eager.named_buffers()]:
        assert torch.equal(torch.cat([p[name] for p in parts], dim), tensor), name


class Rows:
    """A layout as the geometry offers it: rows dealt out to four workers."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def block(self, rank: int) -> Rows:
        self.slices = (slice(rank * self.rows // 4, (rank + 1) * self.rows // 4),)
        return self


def test_layouts_of_the_geometry() -> None:
    torch.manual_seed(0)
    eager = nn.Linear(6, 8)
    torch.manual_seed(0)
    model = deferred_init(nn.Linear, 6, 8)
    materialize_module(model, layout={"weight": Rows(8)}, rank=2)
    assert torch.equal(model.weight, eager.weight[4:6])
    assert torch.equal(model.bias, eager.bias)
    with pytest.raises(PartitionError, match="`rank` was not given"):
        materialize_module(deferred_init(nn.Linear, 6, 8), layout={"weight": Rows(8)})


def test_layouts_that_do_not_fit() -> None:
    model = deferred_init(nn.Linear, 6, 8)
    grid = Grid((0, 1), (2, 1))
    with pytest.raises(PartitionError, match=r"(?s)'wieght'; the module has no such tensors.*'weight', 'bias'"):
        materialize_module(model, layout={"wieght": Layout.balanced(grid, (8, 6))}, rank=0)
    with pytest.raises(PartitionError, match=r"for a tensor of \(16, 6\); it is \(8, 6\)"):
        materialize_module(model, layout={"weight": Layout.balanced(grid, (16, 6))}, rank=0)
    with pytest.raises(PartitionError, match="neither a function nor a mapping"):
        materialize_module(model, layout=[slice(0, 2)])  # type: ignore[arg-type]
    with pytest.raises(PartitionError, match="weight was asked for with 5"):
        materialize_module(model, layout=lambda name, shape: 5)  # type: ignore[arg-type, return-value]


def test_a_block_of_a_transposed_tensor_is_contiguous() -> None:
    deferred = deferred_init(lambda: torch.rand(6, 5).t())
    assert reason_for_whole(deferred) is None
    assert materialize_shard(deferred, (slice(1, 4), slice(2, 6))).is_contiguous()


@pytest.mark.parametrize("start", [0, 1])
def test_an_empty_block_of_a_dim_that_a_view_has_added(start: int) -> None:
    deferred = deferred_init(lambda: torch.rand(3, 5).unsqueeze(1))
    assert materialize_shard(deferred, (slice(0, 2), slice(start, start))).shape == (2, 0, 5)
    assert materialize_shard(deferred, (slice(0, 2), slice(0, 1))).shape == (2, 1, 5)


@pytest.mark.parametrize("fill", ["uniform_", "normal_"])
def test_a_number_is_a_block_of_itself(fill: str) -> None:
    torch.manual_seed(0)
    eager = getattr(torch.empty(()), fill)()
    torch.manual_seed(0)
    assert torch.equal(materialize_shard(deferred_init(lambda: getattr(torch.empty(()), fill)()), ()), eager)


def test_the_gradient_is_cut_with_its_parameter() -> None:
    def build() -> nn.Module:
        layer = nn.Linear(3, 4)
        layer.weight.grad = torch.rand(4, 3)
        return layer

    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    layer = deferred_init(build)
    materialize_module(layer, layout=lambda name, shape: (slice(1, 3),))
    assert torch.equal(layer.weight.grad, eager.weight.grad[1:3])


def test_a_block_leaves_the_tensor_deferred() -> None:
    torch.manual_seed(0)
    layer = deferred_init(nn.Linear, 6, 8)
    first = materialize_shard(layer.weight, (slice(0, 2),))
    materialize_module(layer)
    assert torch.equal(layer.weight[:2], first)
    assert torch.equal(materialize_shard(layer.weight, (slice(0, 2),)), first)


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        ((slice(0, 2, 2),), "step 1"),
        ((3,), "step 1"),
        ((slice(None),) * 3, "at most one slice per dim"),
        (slice(0, 2), "not a sequence of slices"),
    ],
)
def test_what_is_no_block(slices: Any, message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        materialize_shard(deferred_init(nn.Linear, 3, 4).weight, slices)


def test_tied_tensors_cut_in_two_ways() -> None:
    def build() -> nn.Module:
        net = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6, bias=False))
        net[1].weight = net[0].weight
        return net

    with pytest.raises(PartitionError, match=r"0\.weight and 1\.weight are one tensor"):
        materialize_module(deferred_init(build), layout=lambda n, s: (slice(0, 1 + int(n[0])),))


def test_a_view_of_a_cut_parameter() -> None:
    def build() -> nn.Module:
        layer = nn.Linear(4, 4)
        layer.register_buffer("first", layer.weight.detach()[0])
        return layer

    with pytest.raises(PartitionError, match="shares its storage"):
        materialize_module(deferred_init(build), layout=lambda n, s: (slice(0, 1),))


@pytest.mark.parametrize("draw", ["normal_", "uniform_"])
@pytest.mark.parametrize(
    ("shape", "slices"),
    [
        ((128, 128, 3, 3), (slice(None), slice(None), slice(None), slice(0, 1))),
        ((128, 128, 3, 3), (slice(None), slice(5, 90), slice(1, 3), slice(1, 3))),
        ((64, 3, 2, 700), (slice(None), slice(None), slice(None), slice(1, 301))),
        ((7, 300, 17, 5), (slice(2, 6), slice(None), slice(3, 17), slice(4, 5))),
        ((30, 20_000), (slice(None), slice(19, 40))),
        ((2, 3, 40_000), (slice(None), slice(1, 3), slice(7, 30_001))),
    ],
)
def test_a_block_costs_no_more_than_the_whole(
    shape: tuple[int, ...], slices: tuple[slice, ...], draw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: draws, draws that are stepped over, and starts of a generator, each of which is worth `GAP` draws."""
    torch.manual_seed(0)
    eager = getattr(torch.empty(shape), draw)()
    torch.manual_seed(0)
    deferred = deferred_init(lambda: getattr(torch.empty(shape), draw)())
    assert fills.fills_are_known()  # asked once per process, by drawing
    drawn, starts, stepped = [], [], []
    real_draw, real_start, real_step = fills.Fill.draw, fills.generator_at, streams.advanced

    def counted_draw(self: Any, out: Tensor, start: int) -> None:
        drawn.append(out.numel())
        real_draw(self, out, start)

    monkeypatch.setattr(fills.Fill, "draw", counted_draw)
    monkeypatch.setattr(fills, "generator_at", lambda state: starts.append(1) or real_start(state))
    monkeypatch.setattr(streams, "advanced", lambda state, n: stepped.append(n) or real_step(state, n))
    assert torch.equal(materialize_shard(deferred, slices), eager[slices])
    n = eager.numel()
    assert sum(drawn) <= n + 48 * len(starts)
    assert sum(stepped) <= n
    assert (len(starts) - 6) * fills.GAP <= 4 * n


def relative_positions() -> Tensor:
    """As timm's levit numbers its attention biases: rows of a small tensor, broadcast against one another."""
    keys = torch.stack(torch.meshgrid(torch.arange(14), torch.arange(14), indexing="ij")).flatten(1)
    queries = torch.stack(torch.meshgrid(torch.arange(0, 14, 2), torch.arange(0, 14, 2), indexing="ij")).flatten(1)
    apart = (queries[..., :, None] - keys[..., None, :]).abs()
    return apart[0] * 14 + apart[1]


def row_of_a_small_one() -> Tensor:
    table = torch.randn(3, 100, 100)
    return table[1] * torch.rand(3, 1)[2] + torch.randn(2, 3, 50)[1, 2, :1]


@pytest.mark.parametrize("build", [relative_positions, row_of_a_small_one])
def test_the_reason_for_the_whole_is_known_without_data(build: Callable[[], Tensor]) -> None:
    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    deferred = deferred_init(build)
    reason = reason_for_whole(deferred)
    assert reason is None or "element" in reason or "view" in reason or "tensor" in reason
    assert torch.equal(materialize_shard(deferred, (slice(3, 20), slice(5, 44))), eager[3:20, 5:44])


def test_the_arguments_of_a_fill_may_be_given_by_name() -> None:
    def build() -> list[Tensor]:
        return [torch.empty(40).uniform_(to=2.0), torch.ops.aten.normal_(self=torch.empty(40), std=3.0)]

    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    for deferred, whole in zip(deferred_init(build), eager, strict=True):
        assert reason_for_whole(deferred) is None
        assert torch.equal(materialize_shard(deferred, (slice(5, 30),)), whole[5:30])
