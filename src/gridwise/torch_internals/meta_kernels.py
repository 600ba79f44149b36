"""Torch's kernels for meta tensors, in Python: on which device they take a tensor to be, CUDA for a plain meta tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch._meta_registrations
from torch import Tensor

_kernels: Any = torch._meta_registrations
device_hint_by_torch: Callable[[Tensor], str] = _kernels.device_hint


def replace_device_hint(hint: Callable[[Tensor], str]) -> None:
    """Let meta kernels ask `hint` for the device, as a word: ``"cpu"``."""
    _kernels.device_hint = hint
