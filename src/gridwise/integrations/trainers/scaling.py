"""Loss scaling of a trainer, with one decision of all workers on a step to skip."""

from __future__ import annotations

import torch

from ...optim import GradScaler
from ...partition import Partition


def deciding_together(scaler: torch.amp.GradScaler, device: str, P: Partition) -> GradScaler:
    """A scaler with the settings of `scaler`, for all workers of `P`."""
    if isinstance(scaler, GradScaler):
        return scaler
    settings = (
        scaler.get_scale(),
        scaler.get_growth_factor(),
        scaler.get_backoff_factor(),
        scaler.get_growth_interval(),
    )
    return GradScaler(device, *settings, scaler.is_enabled(), P=P)
