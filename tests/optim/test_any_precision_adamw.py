"""AdamW in any precision: equal to torch's in float32, and to its formula where it is not."""

from __future__ import annotations

import pytest
import torch

from gridwise.optim import AnyPrecisionAdamW


def test_in_float32_it_is_torchs() -> None:
    torch.manual_seed(0)
    a = torch.nn.Parameter(torch.randn(5))
    b = torch.nn.Parameter(a.detach().clone())
    full = torch.float32
    ours = AnyPrecisionAdamW([a], 0.1, (0.8, 0.9), 1e-6, 0.3, momentum_dtype=full, variance_dtype=full)
    torchs = torch.optim.AdamW([b], 0.1, (0.8, 0.9), 1e-6, 0.3)
    for _ in range(5):
        a.grad = torch.randn(5)
        b.grad = a.grad.clone()
        ours.step()
        torchs.step()
    torch.testing.assert_close(a, b)


def test_what_rounding_loses_is_added_later() -> None:
    small = torch.bfloat16
    kept = torch.nn.Parameter(torch.ones(1, dtype=small))
    lost = torch.nn.Parameter(torch.ones(1, dtype=small))
    options = {"lr": 1e-4, "momentum_dtype": small, "variance_dtype": small}
    optimizers = [
        AnyPrecisionAdamW([kept], use_kahan_summation=True, **options),
        AnyPrecisionAdamW([lost], **options),
    ]
    for _ in range(100):  # steps of 1e-4, where the last digit is 4e-3
        for weight, optimizer in zip((kept, lost), optimizers, strict=True):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
    assert lost.item() == 1.0
    assert kept.item() == pytest.approx(0.99, abs=4e-3)
    assert optimizers[0].state[kept]["compensation"].dtype is small


def test_the_loss_of_a_closure_comes_back_and_states_keep_their_dtypes() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = AnyPrecisionAdamW([weight])

    def closure() -> torch.Tensor:
        loss = weight.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    again = AnyPrecisionAdamW([weight])
    again.load_state_dict(optimizer.state_dict())
    assert again.state[weight]["exp_avg_sq"].dtype is torch.bfloat16
    assert again.state[weight]["exp_avg"].dtype is torch.float32
    weight.grad = torch.ones(2).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        again.step()
