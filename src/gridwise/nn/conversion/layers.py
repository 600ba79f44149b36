"""Torch module to distributed layer: same name, same arguments, same weights.

Distributed layers have torch's signatures after `P_x`, and torch's modules keep their arguments as attributes of the same
names. So one rule reads them all.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ...partition import Partition

ELEMENTWISE = (
    torch.nn.CELU,
    torch.nn.ELU,
    torch.nn.GELU,
    torch.nn.Hardshrink,
    torch.nn.Hardsigmoid,
    torch.nn.Hardswish,
    torch.nn.Hardtanh,
    torch.nn.Identity,
    torch.nn.LeakyReLU,
    torch.nn.LogSigmoid,
    torch.nn.Mish,
    torch.nn.ReLU,
    torch.nn.ReLU6,
    torch.nn.SELU,
    torch.nn.SiLU,
    torch.nn.Sigmoid,
    torch.nn.Softplus,
    torch.nn.Softshrink,
    torch.nn.Softsign,
    torch.nn.Tanh,
    torch.nn.Tanhshrink,
    torch.nn.Threshold,
)
"""Modules that run on any block as they are."""


def has_layer(module: torch.nn.Module) -> bool:
    return _layer_of(module) is not None


def converted(module: torch.nn.Module, P: Partition) -> torch.nn.Module:
    """The distributed layer that equals `module`, with its weights, mode and frozen parameters, on `P`."""
    layer_type = _layer_of(module)
    assert layer_type is not None
    arguments: dict[str, Any] = {}
    for name in inspect.signature(_torch_type(module)).parameters:
        if name == "bias":
            arguments[name] = getattr(module, "bias", None) is not None
        elif name not in ("device", "dtype"):
            arguments[name] = getattr(module, name)
    values = [*module.parameters(recurse=False), *(b for b in module.buffers(recurse=False) if b.is_floating_point())]
    if values:
        arguments |= {"device": values[0].device, "dtype": values[0].dtype}
    layer = layer_type(P, **arguments)
    layer.load_state_dict(module.state_dict(keep_vars=True))  # the parameters themselves, for they may be deferred
    for name, parameter in module.named_parameters(recurse=False):
        getattr(layer, name).requires_grad_(parameter.requires_grad)
    return layer.train(module.training)


def _layer_of(module: torch.nn.Module) -> type | None:
    from ... import nn

    kind = _torch_type(module)
    return getattr(nn, f"Distributed{kind.__name__}", None) if kind.__module__.startswith("torch.nn") else None


def _torch_type(module: torch.nn.Module) -> type:
    """The class whose arguments `module` has; torch's short names for an `Upsample` count as that."""
    return torch.nn.Upsample if isinstance(module, torch.nn.Upsample) else type(module)
