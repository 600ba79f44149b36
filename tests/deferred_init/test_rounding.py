"""Blocks of elementwise operators: alone where the bits are those of the whole tensor, from the whole where they are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gridwise.deferred_init import deferred_init, materialize_shard, reason_for_whole
from gridwise.deferred_init.rounding import function_holds

SHAPE = (97, 103)
BLOCKS = [(slice(3, 40), slice(5, 98)), (slice(0, 97), slice(7, 8)), (slice(90, 97), slice(None)), (slice(11, 12),)]

ALONE: dict[str, Callable[[Tensor], Tensor]] = {
    "affine": lambda t: (t * 2 - 1) / 3 + 0.1,
    "clamped": lambda t: t.mul_(3).clamp_(0.2, 0.7).neg_().abs(),
    "truncated": lambda t: t.mul(2).sub_(1).erfinv_().mul_(0.02),
    "log": lambda t: t.log(),
    "chosen": lambda t: torch.where(t > 0.5, t, t.exp()),
    "cast": lambda t: t.bfloat16().float().sqrt(),
    "rows": lambda t: t * torch.rand(t.shape[1], dtype=t.dtype),
}
WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "sinh_": torch.Tensor.sinh_,
    "power": lambda t: t**2.3,
    "base": lambda t: 10000**t,
    "softplus": F.softplus,
    "alpha": lambda t: torch.add(t, t * 2, alpha=0.7),
    "floor": lambda t: torch.div(t, 0.1, rounding_mode="floor"),
    "modulus": lambda t: torch.complex(t, t).abs(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", [*ALONE, *WHOLE])
def test_blocks_have_the_bits_of_the_whole_tensor(name: str, dtype: torch.dtype) -> None:
    function = (ALONE | WHOLE)[name]
    if name == "modulus" and dtype == torch.bfloat16:
        dtype = torch.float32

    def build() -> Tensor:
        return function(torch.rand(SHAPE, dtype=dtype))

    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    deferred = deferred_init(build)
    assert (reason_for_whole(deferred) is None) == (name in ALONE)
    for block in BLOCKS:
        assert torch.equal(materialize_shard(deferred, block), eager[block])


def test_a_function_that_rounds_otherwise_at_the_ends_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(x: Tensor) -> Tensor:
        y, end = x.sinh(), len(x) - len(x) % 8
        y[end:] = torch.nextafter(y[end:], torch.tensor(torch.inf))
        return y

    monkeypatch.setattr(torch, "ended", ended, raising=False)
    assert function_holds("erfinv", torch.float32)
    assert not function_holds("ended", torch.float32)
    assert not function_holds("exp", torch.int64)
