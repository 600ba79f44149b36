"""Attention with keys and values block by block: torch's, forward and backward."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gridwise.grid import Box
from gridwise.operators import streamed_attention
from gridwise.operators.attention import AttentionSpec
from gridwise.operators.call import OperatorCall, TensorSpec
from gridwise.operators.random.random_stream import RandomStream
from gridwise.operators.streamed_attention import StreamedAttention
from gridwise.operators.table import maker_for

from .contract import tensors_of

Shapes = list[tuple[int, ...]]
Q, K, V = (2, 4, 9, 6), (2, 4, 7, 6), (2, 4, 7, 5)
OP = torch.ops.aten.scaled_dot_product_attention.default
CASES: list[tuple[Shapes, dict[str, Any]]] = [
    ([Q, K, V], {}),
    ([Q, K, V], {"scale": 0.3}),
    ([Q, K, V], {"is_causal": True}),
    ([K, Q, (2, 4, 9, 5)], {"is_causal": True}),
    ([Q[2:], K[2:], V[2:]], {}),
    ([Q, K, V, (4, 9, 7)], {}),
    ([Q, K, V, (2, 1, 1, 7)], {}),
    ([Q, K, V, (1, 9, 1)], {}),
    ([(2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4)], {"enable_gqa": True}),
    ([(6, 5, 4), (3, 5, 4), (3, 5, 4)], {"enable_gqa": True, "is_causal": True}),
]


def spec_of(tensors: list[Tensor], **given: Any) -> AttentionSpec:
    q, k, v, *mask = (TensorSpec(tuple(x.shape), x.dtype, x.device) for x in tensors)
    shape = (*q.shape[:-1], v.shape[-1])
    result = TensorSpec(shape, q.dtype, q.device)
    named = {"attn_mask": mask[0] if mask else None, **given}
    return AttentionSpec.of(OperatorCall(OP, (q, k, v), named, (result,)))


def streamed(spec: AttentionSpec, box: Box, tensors: list[Tensor], dy: Tensor, cuts: list[int]) -> list[Tensor]:
    """The output on a box and the gradients of what it needs, from blocks of keys and values."""
    parts = [x[need.slices] for x, need in zip(tensors, spec.needs(box), strict=True)]
    q, k, v, mask = *parts, *[None] * (4 - len(parts))
    seen = k.shape[-2]
    blocks = [(a, min(b, seen)) for a, b in pairwise(cuts) if a < seen]
    order = [*blocks[1:], blocks[0]]  # any order will do
    attention = StreamedAttention(spec, box, RandomStream(7))

    def of(block: tuple[int, int]) -> list[Any]:
        a, b = block
        columns = None if mask is None else mask if mask.shape[-1] == 1 else mask[..., a:b]
        return [k[..., a:b, :], v[..., a:b, :], a, columns]

    state = attention.start(q)
    for block in order:
        attention.add(state, q, *of(block))
    y, level = attention.finish(state)
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    dmask = None if mask is None or mask.dtype == torch.bool else torch.zeros_like(mask)
    delta = (dy * y).sum(-1, keepdim=True)
    for a, b in order:
        columns = dmask if dmask is None or dmask.shape[-1] == 1 else dmask[..., a:b]
        of_k, of_v = attention.gradients(q, *of((a, b)), level, dy, delta, dq, columns)
        dk[..., a:b, :], dv[..., a:b, :] = of_k, of_v
    return [y, dq, dk, dv] if dmask is None else [y, dq, dk, dv, dmask]


def compare(spec: AttentionSpec, tensors: list[Tensor], expected: Tensor, cuts: list[int]) -> None:
    """Boxes of the output together have torch's output and gradients."""
    dy = torch.randn_like(expected)
    leaves = [x for x in tensors if x.requires_grad]
    wanted = torch.autograd.grad(expected, leaves, dy)
    plain = [x.detach() for x in tensors]
    found = [torch.zeros_like(x) for x in plain]
    whole = Box.of_shape(tuple(expected.shape))
    for a, b in ((0, 2), (2, whole.stop[-2])):
        box = Box((*whole.start[:-2], a, 0), (*whole.stop[:-2], b, whole.stop[-1]))
        y, *gradients = streamed(spec, box, plain, dy[box.slices], cuts)
        torch.testing.assert_close(y, expected[box.slices].detach(), rtol=1e-10, atol=1e-12)
        for total, need, part in zip(found, spec.needs(box), gradients, strict=False):
            total[need.slices] += part
    for x, y in zip(found, wanted, strict=False):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("shapes", "given"), CASES)
@pytest.mark.parametrize("pieces", [(64, 256), (3, 2)], ids=["at once", "in pieces"])
def test_blocks_of_keys(
    shapes: Shapes, given: dict[str, Any], pieces: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_attention, "SCORES", 1)
    monkeypatch.setattr(streamed_attention, "ROWS", pieces[0])
    monkeypatch.setattr(streamed_attention, "COLUMNS", pieces[1])
    tensors = [x.requires_grad_() for x in tensors_of(shapes)]
    expected = F.scaled_dot_product_attention(*tensors, **given)
    compare(spec_of(tensors, **given), tensors, expected, [0, 3, 4, 9])


def test_queries_that_see_no_key_are_zero() -> None:
    q, k, v = (x.requires_grad_() for x in tensors_of([Q, K, V]))
    for mask in (torch.ones(9, 7, dtype=torch.bool).tril(-2), torch.zeros(9, 7).double().fill_(-math.inf).triu(-1)):
        expected = F.scaled_dot_product_attention(q, k, v, mask)
        compare(spec_of([q, k, v, mask]), [q, k, v, mask], expected, [0, 4, 7])


def test_dropout_is_that_of_the_operator() -> None:
    q, k, v = (x.requires_grad_() for x in tensors_of([Q, K, V]))
    spec = spec_of([q, k, v], dropout_p=0.4)
    named = [TensorSpec(tuple(x.shape), x.dtype, x.device) for x in (q, k, v)]
    shape = (2, 4, 9, 5)
    make = maker_for(OP)
    assert make is not None
    call = OperatorCall(OP, tuple(named), {"dropout_p": 0.4}, (TensorSpec(shape, q.dtype, q.device),))
    expected = make(call).run(RandomStream(7), Box.of_shape(shape), q, k, v)  # type: ignore[union-attr]
    compare(spec, [q, k, v], expected, [0, 3, 7])
