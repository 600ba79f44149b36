"""Attention of what is hidden, of no batch, and with masks that torch refuses: as torch has it, or named on all workers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gridwise
from gridwise.errors import PartitionError
from gridwise.testing import workers


def partition(*shape: int) -> gridwise.Partition:
    return gridwise.world().create_cartesian_topology_partition(shape)


class Attends(nn.Module):
    """Attention with a padding mask and a mask of pairs, whose weights are asked for or not."""

    def __init__(self, need_weights: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.need_weights, self.attention = need_weights, nn.MultiheadAttention(4, 2, dropout, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        given = {"key_padding_mask": padding, "attn_mask": mask, "need_weights": self.need_weights}
        return self.attention(x, x, x, **given)[0]


class Encodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.layer(x, src_key_padding_mask=padding)


class Drops(nn.Module):
    """Attention by the function, which drops in training."""

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, ~padding[:, None, :], dropout_p=0.5 if self.training else 0.0)


HIDES: dict[str, Any] = {
    "weights": lambda: Attends(need_weights=True),
    "no weights": Attends,
    "no weights, dropout": lambda: Attends(dropout=0.5).eval(),
    "encoder": Encodes,
    "function": lambda: Drops().eval(),
}


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("kind", HIDES)
def test_a_sample_of_which_nothing_counts(kind: str) -> None:
    torch.manual_seed(0)
    sequential, P, P_mask = HIDES[kind]().double(), partition(2, 1, 1), partition(2, 1)
    model = gridwise.distribute(copy.deepcopy(sequential), P, padding=P_mask)
    x, hidden = torch.randn(4, 6, 4, dtype=torch.float64), torch.zeros(4, 6, dtype=torch.bool)
    hidden[2], hidden[0, 4:] = True, True
    x.requires_grad_()
    own = x.detach()[gridwise.local_slice(P, x.shape)].clone().requires_grad_()
    expected, y = sequential(x, hidden), model(own, hidden[gridwise.local_slice(P_mask, hidden.shape)])
    same = {"equal_nan": True} if kind == "weights" else {}  # then torch gives nan too
    assert bool(expected.isnan().any()) == (kind == "weights")
    torch.testing.assert_close(y, expected[gridwise.local_slice(model.P_y, expected.shape)], **same)
    expected.square().sum().backward()
    y.square().sum().backward()
    torch.testing.assert_close(own.grad, x.grad[gridwise.local_slice(P, x.shape)], **same)
    for mine, whole in zip(model.parameters(), sequential.parameters(), strict=True):
        part = mine.block.slices if mine.block is not None else ...
        torch.testing.assert_close(mine.grad, whole.grad[part], **same)


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_without_a_batch(batch_first: bool) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 1, batch_first=batch_first)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x)[0]

    for model in (Own(), nn.TransformerEncoderLayer(4, 1, 8, 0.0, batch_first=batch_first)):
        x, P = torch.randn(6, 4), partition(2, 1)
        y, expected = (made := gridwise.distribute(model, P))(x[gridwise.local_slice(P, x.shape)]), model(x)
        torch.testing.assert_close(y, expected[gridwise.local_slice(made.P_y, expected.shape)])


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("need_weights", [True, False])
def test_masks_that_torch_refuses(need_weights: bool) -> None:
    P, x = partition(2, 1, 1), torch.randn(2, 6, 4)
    wholes = {
        "padding": [torch.ones(4, 6, dtype=torch.long), torch.ones(4, 1, dtype=torch.bool)],
        "mask": [torch.zeros(1, 6), torch.zeros(6, 6, dtype=torch.long), torch.zeros(6, 1, dtype=torch.bool)],
    }
    for key, values in wholes.items():
        P_mask = partition(2, 1) if key == "padding" else partition(1, 2)
        model = gridwise.distribute(Attends(need_weights), P, **{key: P_mask})
        for value in values:
            with pytest.raises(Exception) as words:  # noqa: PT011
                Attends(need_weights)(torch.randn(4, 6, 4), **{key: value})
            block = value[gridwise.local_slice(P_mask, value.shape)]
            with pytest.raises(PartitionError, match="cannot take a global input") as info:
                model(x, **{key: block})
            said = str(words.value).splitlines()[0]
            assert said in str(info.value), (said, str(info.value))


@workers(2, transports=("mpi",))
def test_masks_of_other_ranks_are_named() -> None:
    for key, P_mask in {"mask": partition(2, 1, 1, 1), "padding": partition(2, 1, 1)}.items():
        model = gridwise.distribute(Attends(), partition(2, 1, 1), **{key: P_mask})
        with pytest.raises(PartitionError, match="cannot take a global input of shape"):
            model(torch.randn(2, 6, 4), **{key: torch.zeros((1,) * P_mask.dim)})


@workers(2, transports=("mpi",))
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("need_weights", [True, False])
def test_a_hint_that_does_not_fit_its_mask(need_weights: bool, dropout: float) -> None:
    class Hinted(Attends):
        def forward(self, x: Tensor) -> Tensor:
            given = {"attn_mask": self.mask, "is_causal": True, "need_weights": self.need_weights}
            return self.attention(x, x, x, **given)[0]

    torch.manual_seed(0)
    sequential, P = Hinted(need_weights, dropout).eval(), partition(2, 1, 1)
    sequential.register_buffer(
        "mask", torch.eye(6).bool()
    )  # where no weights are asked for, torch goes by the hint alone
    model, x = gridwise.distribute(copy.deepcopy(sequential), P), torch.randn(4, 6, 4)
    expected = sequential(x)
    torch.testing.assert_close(
        model(x[gridwise.local_slice(P, x.shape)]), expected[gridwise.local_slice(model.P_y, expected.shape)]
    )
    if dropout:
        assert not torch.equal(
            model.train()(x[gridwise.local_slice(P, x.shape)]), model.eval()(x[gridwise.local_slice(P, x.shape)])
        )
