"""Blocks are refused by optimisers and wrappers that need whole tensors.

Elementwise optimisers (SGD, Adam and most others) update each worker's block as the sequential one would. LBFGS takes
inner products over all parameters, Adafactor row means, Muon an orthogonal factor: of a block these would be silently
wrong. A hook that torch runs before every step of every optimiser refuses that, so nobody has to remember to check.
Torch's wrappers for data parallelism assume that all workers hold copies of the first one's parameters: a hook that
torch runs when a module becomes part of another refuses those.
"""

from __future__ import annotations

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...errors import UnsupportedError
from .blocks import BlockParameter

OF_ALL_PARAMETERS = {"LBFGS"}
OF_ONE_PARAMETER = {
    "Adafactor",
    "Muon",
    "LAMB",
    "Lamb",
    "LARS",
    "Lars",
    "NovoGrad",
    "Shampoo",
    "DistributedShampoo",
    "SOAP",
}

WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"}


def refuse_blocks(optimizer: torch.optim.Optimizer, args: object = (), kwargs: object = None) -> None:
    """Raise `UnsupportedError` if `optimizer` needs whole tensors and has a parameter in blocks."""
    names = {kind.__name__ for kind in type(optimizer).__mro__}
    if names.isdisjoint(OF_ALL_PARAMETERS | OF_ONE_PARAMETER):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            layout = parameter.placement if isinstance(parameter, BlockParameter) else None
            if layout is not None and (layout.grid.size > 1 or not names.isdisjoint(OF_ALL_PARAMETERS)):
                raise UnsupportedError(
                    f"{type(optimizer).__name__} computes with whole tensors, but a parameter of global shape "
                    f"{layout.global_shape} lies in blocks on workers {layout.grid.ranks}.\n"
                    "  fix: an elementwise optimiser (SGD, Adam, AdamW, RMSprop), or a grid that leaves the parameters whole."
                )


def refuse_wrapper(outer: torch.nn.Module, name: str, inner: torch.nn.Module | None) -> None:
    """Raise `UnsupportedError` if `outer` makes the parameters of `inner` equal on all workers and one is cut."""
    names = {kind.__name__ for kind in type(outer).__mro__}
    if inner is None or names.isdisjoint(WRAPPERS):
        return
    for own, parameter in inner.named_parameters():
        layout = parameter.placement if isinstance(parameter, BlockParameter) else None
        if layout is not None and layout.grid.size > 1:
            raise UnsupportedError(
                f"{type(outer).__name__} copies the parameters of its first worker to the others and averages gradients, but "
                f"`{own}`, of global shape {layout.global_shape}, lies in blocks on workers {layout.grid.ranks}.\n"
                "  fix: leave it out: the layers sum gradients themselves, and a batch axis of the grid longer than 1 is "
                "data parallelism."
            )


register_optimizer_step_pre_hook(refuse_blocks)
register_module_module_registration_hook(refuse_wrapper)
