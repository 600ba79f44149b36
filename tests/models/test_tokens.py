"""Models of tokens: attention, transformers, embeddings, class tokens; equal to the sequential ones, or named."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridwise
from gridwise.testing import check_equal_to_sequential, workers

from .of_functions import check_or_refused
from .whole_models import train_both

GRIDS: dict[int, list[tuple[int, ...]]] = {
    1: [(1, 1, 1)],
    2: [(2, 1, 1), (1, 2, 1), (1, 1, 2)],
    3: [(3, 1, 1), (1, 3, 1)],
    4: [(4, 1, 1), (2, 2, 1), (2, 1, 2)],
}


class ViT(nn.Module):
    """As most write it: patches by a convolution, a class token, positions, torch's encoder, a head on the class token."""

    def __init__(self, dim: int = 8, norm_first: bool = True, batch_first: bool = True) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.patch = nn.Conv2d(3, dim, 4, 4)
        self.cls = nn.Parameter(0.1 * torch.randn(1, 1, dim))
        self.position = nn.Parameter(0.1 * torch.randn(1, 20, dim))
        layer = nn.TransformerEncoderLayer(
            dim, 2, 12, 0.0, activation="gelu", norm_first=norm_first, batch_first=batch_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        b, n, _ = x.shape
        x = torch.cat([self.cls.expand(b, -1, -1), x], dim=1) + self.position[:, : n + 1]
        x = self.encoder(x) if self.batch_first else self.encoder(x.transpose(0, 1)).transpose(0, 1)
        return self.head(x[:, 0])


@workers(1, 2, 3, 4, transports=("mpi",))
def test_vision_transformer(gridwise_setting: tuple[str, int]) -> None:
    grids = {
        1: [(1, 1, 1, 1)],
        2: [(1, 1, 2, 1), (2, 1, 1, 1), (1, 2, 1, 1)],
        3: [(1, 1, 1, 3)],
        4: [(1, 1, 2, 2), (2, 1, 2, 1)],
    }
    for grid in grids[gridwise_setting[1]]:
        P_x = gridwise.world().create_cartesian_topology_partition(grid)
        torch.manual_seed(0)
        train_both(ViT().double(), P_x, (5, 3, 8, 12), 5, steps=3)
        train_both(ViT(norm_first=False, batch_first=False).double(), P_x, (3, 3, 8, 12), 5, steps=2)


@workers(2, transports=("gloo",))
def test_vision_transformer_over_gloo() -> None:
    torch.manual_seed(0)
    P_x = gridwise.world().create_cartesian_topology_partition((1, 1, 2, 1))
    train_both(ViT().double(), P_x, (3, 3, 8, 12), 5, steps=2)


class GPT(nn.Module):
    """A small language model: positions by arange, a causal mask in a buffer, weights tied to the embedding."""

    def __init__(self, dim: int = 8, heads: int = 2, words: int = 11, length: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.wte, self.wpe = nn.Embedding(words, dim), nn.Embedding(length, dim)
        self.norm1, self.norm2, self.last = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attend, self.project = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 16), nn.GELU(), nn.Linear(16, dim), nn.Dropout(0.0))
        self.head = nn.Linear(dim, words, bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def attention(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.attend(x).split(c, dim=2) if isinstance(c, int) else self.attend(x).chunk(3, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(4))
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(y.transpose(1, 2).contiguous().view(b, t, c))

    def forward(self, words: Tensor) -> Tensor:
        _, t = words.size()
        x = self.wte(words) + self.wpe(torch.arange(0, t, dtype=torch.long, device=words.device))
        x = x + self.attention(self.norm1(x))
        return self.head(self.last(x + self.mlp(self.norm2(x))))


@workers(1, 2, 3, 4, transports=("mpi",))
def test_language_model_with_tied_weights(gridwise_setting: tuple[str, int]) -> None:
    grids = {1: [(1, 1)], 2: [(2, 1), (1, 2)], 3: [(3, 1)], 4: [(4, 1), (2, 2)]}
    for grid in grids[gridwise_setting[1]]:
        P = gridwise.world().create_cartesian_topology_partition(grid)
        torch.manual_seed(0)
        sequential = GPT().double()
        model = gridwise.distribute(copy.deepcopy(sequential), P)
        assert list(model.state_dict()) == list(sequential.state_dict())
        for words in (torch.arange(35).view(5, 7) * 7 % 11, torch.arange(12).view(4, 3) % 11):
            model.zero_grad()
            sequential.zero_grad()
            y = sequential(words)
            mine = model(words[gridwise.local_slice(P, words.shape)])
            torch.testing.assert_close(mine, y[gridwise.local_slice(model.P_y, y.shape)])
            y.square().sum().backward()
            mine.square().sum().backward()
            for (name, parameter), whole in zip(model.named_parameters(), sequential.parameters(), strict=True):
                part = parameter.block.slices if parameter.block is not None else ...
                torch.testing.assert_close(
                    parameter.grad, whole.grad[part], msg=lambda m, n=f"{name} on {grid}": f"{n}: {m}"
                )


class Attended(nn.Module):
    def __init__(self, weights: bool = False, **arguments: Any) -> None:
        super().__init__()
        self.weights = weights
        self.attention = nn.MultiheadAttention(8, 2, **arguments)
        self.register_buffer("mask", torch.triu(torch.full((6, 6), -torch.inf), 1))
        self.register_buffer("hidden", torch.triu(torch.ones(6, 6), 1).bool())

    def forward(self, x: Tensor) -> Tensor:
        if self.weights:
            y, weights = self.attention(x, x.sin(), x, attn_mask=self.hidden)
            return torch.cat([y, weights], 2)
        return self.attention(x, x, x, need_weights=False)[0] + self.attention(x, x, x.cos(), attn_mask=self.mask)[0]


@workers(1, 2, 3, 4, transports=("mpi",))
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("arguments", [{"batch_first": True}, {"batch_first": True, "bias": False}, {}])
def test_attention(weights: bool, arguments: dict, gridwise_setting: tuple[str, int]) -> None:
    first = arguments.get("batch_first", False)
    for grid in GRIDS[gridwise_setting[1]]:
        P = gridwise.world().create_cartesian_topology_partition(grid)
        torch.manual_seed(0)
        if weights and not first:
            continue  # torch gives the weights with the batch first all the same
        sequential = Attended(weights, **arguments).double()
        shape = (5, 6, 8) if first else (6, 5, 8)
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        model = gridwise.distribute(copy.deepcopy(sequential), P, example=x)
        for _ in range(2):
            model.zero_grad()
            sequential.zero_grad()
            check_equal_to_sequential(model, sequential, x, P, model.P_y)


class Translated(nn.Module):
    """An encoder and a decoder, padding masks, and two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), 1, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True, norm_first=True), 2
        )

    def forward(self, x: Tensor, y: Tensor, padding: Tensor) -> Tensor:
        memory = self.encoder(x, src_key_padding_mask=padding)
        return self.decoder(y, memory, memory_key_padding_mask=padding)


@workers(1, 2, 3, 4)
def test_encoder_and_decoder(gridwise_setting: tuple[str, int]) -> None:
    for grid in GRIDS[gridwise_setting[1]][:1] if gridwise_setting[0] == "gloo" else GRIDS[gridwise_setting[1]]:
        P = gridwise.world().create_cartesian_topology_partition(grid)
        P_mask = gridwise.world().create_cartesian_topology_partition((gridwise_setting[1], 1))
        torch.manual_seed(0)
        sequential = Translated().double()
        model = gridwise.distribute(copy.deepcopy(sequential), P, padding=P_mask)
        x, y = (torch.randn(5, n, 8, dtype=torch.float64).requires_grad_() for n in (6, 4))
        padding = torch.arange(6) >= torch.tensor([[6], [5], [3], [4], [6]])
        mine = [t.detach()[gridwise.local_slice(P, t.shape)].clone().requires_grad_() for t in (x, y)]
        for _ in range(2):
            expected = sequential(x, y, padding)
            made = model(*mine, padding[gridwise.local_slice(P_mask, padding.shape)])
            torch.testing.assert_close(made, expected[gridwise.local_slice(model.P_y, expected.shape)])
        expected.square().sum().backward()
        made.square().sum().backward()
        for own, whole in zip(mine, (x, y), strict=True):
            torch.testing.assert_close(own.grad, whole.grad[gridwise.local_slice(P, whole.shape)])
        for (name, own), whole in zip(model.named_parameters(), sequential.parameters(), strict=True):
            part = own.block.slices if own.block is not None else ...
            torch.testing.assert_close(own.grad, whole.grad[part], msg=lambda m, n=f"{name} on {grid}": f"{n}: {m}")


@workers(2, transports=("mpi",))
def test_dropout_in_attention_does_not_depend_on_the_grid() -> None:
    torch.manual_seed(0)
    sequential = nn.TransformerEncoderLayer(8, 2, 12, 0.5, batch_first=True)
    x, made = torch.randn(4, 6, 8), []
    for grid in ((2, 1, 1), (1, 2, 1)):
        P = gridwise.world().create_cartesian_topology_partition(grid)
        model = gridwise.distribute(copy.deepcopy(sequential), P)
        torch.manual_seed(5)
        y = model(x[gridwise.local_slice(P, x.shape)])
        whole = gridwise.gather(y.detach(), model.P_y, 0)
        made.append(whole)
        model.eval()
        sequential.eval()
        expected = sequential(x)
        torch.testing.assert_close(
            model(x[gridwise.local_slice(P, x.shape)]), expected[gridwise.local_slice(model.P_y, expected.shape)]
        )
        sequential.train()
    torch.testing.assert_close(*made)


class Of(nn.Module):
    def __init__(self, function: Any, **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


@workers(1, 2, transports=("mpi",))
def test_a_whole_transformer_and_features_of_other_widths(gridwise_setting: tuple[str, int]) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, kdim=4, vdim=6, batch_first=True)

        def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
            y, weights = self.attention(src, tgt[..., :4], tgt[..., :6], average_attn_weights=False)
            return torch.cat([y, weights.flatten(1, 2).transpose(1, 2).mean(1, keepdim=True).repeat(1, 6, 1)], 2)

    torch.manual_seed(0)
    whole = nn.Transformer(8, 2, 1, 2, 12, 0.0, batch_first=True)
    for sequential in (whole.double(), Wide().double()):
        for grid in GRIDS[gridwise_setting[1]]:
            P = gridwise.world().create_cartesian_topology_partition(grid)
            model = gridwise.distribute(copy.deepcopy(sequential), P)
            x, y = (torch.randn(3, n, 8, dtype=torch.float64) for n in (6, 5))
            expected = sequential(x, y)
            made = model(*(t[gridwise.local_slice(P, t.shape)] for t in (x, y)))
            torch.testing.assert_close(made, expected[gridwise.local_slice(model.P_y, expected.shape)])


class Dropping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(x, x, x, dropout_p=0.4 if self.training else 0, is_causal=True)
        return y + F.scaled_dot_product_attention(x, x, x, dropout_p=1.0)


@workers(2, transports=("mpi",))
def test_attention_drops_the_same_on_every_grid() -> None:
    x, made = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0)), []
    for grid in ((2, 1, 1), (1, 2, 1), (1, 1, 2)):
        P = gridwise.world().create_cartesian_topology_partition(grid)
        model = gridwise.distribute(Dropping(), P)
        torch.manual_seed(5)
        made.append(gridwise.gather(model(x[gridwise.local_slice(P, x.shape)]), model.P_y, 0))
        y = model.eval()(x[gridwise.local_slice(P, x.shape)])
        expected = Dropping().eval()(x)
        torch.testing.assert_close(y, expected[gridwise.local_slice(model.P_y, expected.shape)])
        if gridwise.world().rank == 0:
            assert not torch.allclose(made[-1], expected)
    torch.testing.assert_close(made[0], made[1])
    torch.testing.assert_close(made[0], made[2])


ODD: dict[str, Any] = {
    "a bias for keys": lambda: Of(lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(8, 2, add_bias_kv=True)),
    "a limited norm": lambda: Of(lambda m, x: m.e(x.abs().long() % 3) * x.mean(), e=nn.Embedding(3, 4, max_norm=1.0)),
    "sparse": lambda: Of(lambda m, x: m.e(x.abs().long() % 3) * x.mean(), e=nn.Embedding(3, 4, sparse=True)),
    "frequencies": lambda: Of(lambda m, x: m.e(x.abs().long() % 3) * x.mean(), e=nn.Embedding(3, 4, scale_grad_by_freq=True)),
    "a mask for each head": lambda: Of(
        lambda m, x: m.a(x, x, x, attn_mask=x.new_zeros(12, 5, 5))[0], a=nn.MultiheadAttention(8, 2)
    ),
}  # fmt: skip


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("name", ODD)
def test_equal_or_refused(name: str) -> None:
    check_or_refused(ODD[name], (2, 1, 1), (5, 6, 8))


@workers(2, transports=("mpi",))
def test_gradients_of_all_small_parameters_are_summed_in_one_message() -> None:
    P = gridwise.world().create_cartesian_topology_partition([1, 2, 1])
    torch.manual_seed(0)
    sequential = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2).double()
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    model = gridwise.distribute(copy.deepcopy(sequential), P, example=x)
    for _ in range(2):  # planned at the first call, trusted at the second
        check_equal_to_sequential(model, sequential, x, P, model.P_y)
        model.zero_grad()
        sequential.zero_grad()
    transport, summed = P.transport, []
    post_sum, y = transport.post_sum, model(x[gridwise.local_slice(P, x.shape)])
    transport.post_sum = lambda z, team, what, wire: summed.append(what) or post_sum(z, team, what, wire)
    try:
        y.square().sum().backward()
    finally:
        del transport.post_sum
    assert len([what for what in summed if "the gradient of" in what]) == 1, summed
    frozen = dict(sequential.named_parameters())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm1" in name)
        frozen[name].requires_grad_("norm1" in name)
    model.zero_grad()
    sequential.zero_grad()
    check_equal_to_sequential(model, sequential, x, P, model.P_y)
    assert all((p.grad is not None) == ("norm1" in name) for name, p in model.named_parameters())
