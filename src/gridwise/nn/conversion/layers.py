"""Torch module to distributed layer: same name, same arguments, same weights.

Distributed layers have torch's signatures after `P_x`, and torch's modules keep their arguments as attributes of the same
names. So one rule reads them all. A class of the user's that changes only the arguments of one of torch's counts as that.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ...partition import Partition
from .state import Extent, Symbol

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

ALONG: dict[type, int | None] = {
    torch.nn.ChannelShuffle: 1,
    torch.nn.GLU: None,
    torch.nn.LocalResponseNorm: 1,
    torch.nn.LogSoftmax: None,
    torch.nn.Softmax: None,
    torch.nn.Softmax2d: -3,
    torch.nn.Softmin: None,
}
"""Modules that run as they are where a dim is whole: which one; None for their attribute `dim`."""

WAYS = (
    "train",
    "eval",
    "requires_grad_",
    "zero_grad",
    "parameters",
    "named_parameters",
    "_apply",
    "state_dict",
    "load_state_dict",
    "_save_to_state_dict",
    "_load_from_state_dict",
    "get_extra_state",
    "set_extra_state",
)
"""Methods of modules that a distributed layer has in torch's way, or in one of its own."""


def is_known(module: torch.nn.Module) -> bool:
    """Whether a module can be converted on some grid."""
    as_it_is = (
        *ELEMENTWISE,
        *ALONG,
        torch.nn.Flatten,
        torch.nn.Unflatten,
        torch.nn.PixelShuffle,
        torch.nn.PixelUnshuffle,
    )
    return isinstance(module, as_it_is) or has_layer(module)


def has_layer(module: torch.nn.Module) -> bool:
    return _layer_of(module) is not None


def converted(module: torch.nn.Module, P: Partition) -> torch.nn.Module:
    """The distributed layer that equals `module`, with its weights, mode and frozen parameters, on `P`."""
    layer = made_like(module, P)
    layer.load_state_dict(module.state_dict(keep_vars=True))  # the parameters themselves, for they may be deferred
    for name, parameter in module.named_parameters(recurse=False):
        getattr(layer, name).requires_grad_(parameter.requires_grad)
    return layer.train(module.training)


def made_like(module: torch.nn.Module, P: Partition) -> Any:
    """The distributed layer with the arguments of `module`, on `P`."""
    layer_type = _layer_of(module)
    assert layer_type is not None
    arguments: dict[str, Any] = {}
    for name in inspect.signature(_torch_type(module)).parameters:
        if name == "bias":
            arguments[name] = getattr(module, "bias", None) is not None
        elif name == "track_running_stats":  # may have been changed since it decided about the buffers
            arguments[name] = module.running_mean is not None
        elif name not in ("device", "dtype"):
            arguments[name] = getattr(module, name)
    values = [*module.parameters(recurse=False), *(b for b in module.buffers(recurse=False) if b.is_floating_point())]
    if values:
        arguments |= {"device": values[0].device, "dtype": values[0].dtype}
    layer = layer_type(P, **arguments)
    if "track_running_stats" in arguments:
        layer.track_running_stats = module.track_running_stats
    return layer


def extents_after(module: torch.nn.Module, extents: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """The extents of what a layer makes of a tensor, where its arguments tell."""
    kind = _torch_type(module).__name__
    if kind == "Linear":
        return (*extents[:-1], _number(module, "out_features"))
    if "Norm" in kind or "Dropout" in kind or kind == "PReLU":
        return extents
    space = int(kind[-2]) if kind[-1] == "d" and kind[-2].isdigit() else len(extents) - 2
    lead, own = extents[:-space], extents[-space:]
    if "Conv" in kind:
        keeps = "Transpose" not in kind and _keeps_space(module, space)
        lead = (*lead[:-1], _number(module, "out_channels"))
        return (*lead, *own) if keeps else (*lead, *(Symbol() for _ in own))
    if kind.startswith("Adaptive"):
        size: Any = module.output_size
        sizes = size if isinstance(size, tuple | list) else (size,) * space
        return (*lead, *(n if wish is None else wish for n, wish in zip(own, sizes, strict=True)))
    return (*lead, *(Symbol() for _ in own))


def _number(module: torch.nn.Module, name: str) -> int:
    return int(getattr(module, name))


def _keeps_space(conv: Any, space: int) -> bool:
    if conv.padding == "same":
        return True
    padding = (0,) * space if conv.padding == "valid" else conv.padding
    return all(
        s == 1 and 2 * p == d * (k - 1)
        for s, p, d, k in zip(conv.stride, padding, conv.dilation, conv.kernel_size, strict=True)
    )


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether something else happens when the module is called: weight norm, spectral norm, the user's own hooks."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "parametrizations" in module._modules
    )


def _layer_of(module: torch.nn.Module) -> type | None:
    from ... import nn

    kind = _torch_type(module)
    return getattr(nn, f"Distributed{kind.__name__}", None) if kind.__module__.startswith("torch.nn") else None


def _torch_type(module: torch.nn.Module) -> type:
    """The class whose arguments `module` has; torch's short names for an `Upsample` count as that."""
    if isinstance(module, torch.nn.Upsample):
        return torch.nn.Upsample
    if type(module) is NonDynamicallyQuantizableLinear:  # what attention calls its linear layer
        return torch.nn.Linear
    own = type(module)
    base = next(kind for kind in own.__mro__ if kind.__module__.startswith("torch.nn.modules"))
    if base.__name__.startswith("_") or base in (torch.nn.Module, torch.nn.Sequential):
        return own
    methods = [name for name, value in vars(base).items() if inspect.isfunction(value) and name != "__init__"]
    same = all(getattr(own, name) is getattr(base, name) for name in ("forward", "__call__", *methods, *WAYS))
    return base if same else own
