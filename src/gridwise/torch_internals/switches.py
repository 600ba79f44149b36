"""Switches of autograd and autocast as functions: they are nodes of a recorded graph, which act on all that follow."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.autocast_mode import _enter_autocast as enter_autocast
from torch.amp.autocast_mode import _exit_autocast as exit_autocast

__all__ = ["SWITCHES", "enter_autocast", "exit_autocast", "set_grad_enabled"]

set_grad_enabled: Any = torch._C._set_grad_enabled
SWITCHES = (set_grad_enabled, enter_autocast, exit_autocast)
