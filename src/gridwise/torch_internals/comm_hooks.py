"""Torch's hooks that average gradients in its own data-parallel wrappers, and the state that they take."""

from typing import Any

from torch.distributed.algorithms._comm_hooks import default

DefaultState: Any = default.DefaultState
allreduce_hook: Any = default.allreduce_hook
