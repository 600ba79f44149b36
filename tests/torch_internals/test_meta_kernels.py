"""Meta kernels give the strides of the device that they are told."""

from __future__ import annotations

import torch

from gridwise.torch_internals import meta_kernels
from gridwise.torch_internals.meta_kernels import device_hint_by_torch, replace_device_hint


def test_kernels_ask_what_replaces_their_hint() -> None:
    now = meta_kernels._kernels.device_hint
    assert device_hint_by_torch(torch.empty(1, device="meta")) == "cuda"
    asked: list[str] = []
    try:
        replace_device_hint(lambda x: (asked.append("asked"), "cpu")[1])
        torch.linalg.svd(torch.empty(2, 2, device="meta"))
    finally:
        replace_device_hint(now)
    assert asked
