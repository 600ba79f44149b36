"""Blocks are refused by optimisers and wrappers that need whole tensors.

Elementwise optimisers (SGD, Adam and most others) update each worker's block as the sequential one would. LBFGS takes
inner products over all parameters, Adafactor row means, Muon an orthogonal factor: of a block these would be silently
wrong. A hook that torch runs before every step of every optimiser refuses those that are known by name, so nobody has to
remember to check. Torch's wrappers for data parallelism assume that all workers hold copies of the first one's
parameters: a hook that torch runs when a module becomes part of another refuses those. `fully_shard` and the newer
`replicate` wrap nothing, but replace parameters by DTensors: a layer refuses one in place of a block.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import TypeGuard

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...errors import PartitionError, UnsupportedError
from ...grid import Layout
from .blocks import BlockParameter, placement_of
from .elementwise import reason_against

OF_ALL_PARAMETERS = {
    "lbfgs", "adai", "avagrad", "dog", "mechanic", "prodigy", "sam", "asam", "bsam", "gsam", "wsam", "friendlysam", "looksam",
    "dadaptadagrad", "dadaptadam", "dadaptadampreprint", "dadaptadan", "dadaptadanip", "dadaptlion", "dadaptsgd",
}  # fmt: skip
"""Optimisers that compute with all parameters together: names of their classes, in lower case without underscores."""
OF_ONE_PARAMETER = {
    "adafactor", "adafactorbigvision", "came", "stableadamw", "sm3", "adammini", "adamp", "sgdp", "ranger", "ranger21",
    "muon", "adamuon", "distributedmuon", "singledevicemuon", "muonwithauxadam", "dion", "soap", "kron", "shampoo",
    "distributedshampoo", "scalableshampoo", "galore", "galoreadamw", "apollo", "fira", "lamb", "lamb8bit", "lamb32bit",
    "lars", "lars8bit", "lars32bit", "lomo", "adalomo", "novograd", "nvnovograd", "fromage", "nero", "ldog",
}  # fmt: skip
"""Likewise those that compute with a whole parameter: its norm, means of its rows, a factor of it."""

WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"}


REPLACED = "_replaced_by_block"


def mark_replaced(parameter: torch.Tensor) -> None:
    """Note that a block has taken the place of a parameter, which an optimiser may still hold."""
    setattr(parameter, REPLACED, True)


def refuse_blocks(optimizer: torch.optim.Optimizer, args: object = (), kwargs: object = None) -> None:
    """Raise `UnsupportedError` if `optimizer` needs whole tensors and has a parameter in blocks."""
    if any(REPLACED in vars(parameter) for group in optimizer.param_groups for parameter in group["params"]):
        raise PartitionError(
            f"this {type(optimizer).__name__} was made before distribute(..., parameters='cut'), and holds parameters whose "
            "place blocks have taken.",
            fix="make it afterwards, from the parameters of the model that distribute returns.",
        )
    names = {kind.__name__.lower().replace("_", "") for kind in type(optimizer).__mro__}
    needs_all, needs_one = not names.isdisjoint(OF_ALL_PARAMETERS), not names.isdisjoint(OF_ONE_PARAMETER)
    layouts = [placement_of(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    cut = next((x for x in layouts if x is not None and (x.grid.size > 1 or needs_all)), None)
    if cut is None:
        return
    reason = "computes with whole tensors" if needs_all or needs_one else reason_against(optimizer)
    if reason is not None:
        raise UnsupportedError(
            f"{type(optimizer).__name__} {reason}, but a parameter of global shape {cut.global_shape} lies in blocks on "
            f"workers {cut.grid.ranks}.\n"
            "  fix: an elementwise optimiser (SGD, Adam, AdamW, RMSprop), or a grid that leaves the parameters whole."
        )


def refuse_wrapper(outer: torch.nn.Module, name: str, inner: torch.nn.Module | None) -> None:
    """Raise `UnsupportedError` if `outer` makes the parameters of `inner` equal on all workers and one is cut."""
    names = {kind.__name__ for kind in type(outer).__mro__}
    if inner is None or names.isdisjoint(WRAPPERS):
        return
    for own, parameter in inner.named_parameters():
        layout = placement_of(parameter)
        if layout is not None and layout.grid.size > 1:
            raise _not_replicated(
                f"{type(outer).__name__} copies the parameters of its first worker to the others", own, layout
            )


def refuse_dtensor(name: str, value: object, layout: Layout) -> None:
    """Raise `UnsupportedError` if `value`, assigned to a parameter that lies in blocks, is a DTensor."""
    if type(value).__name__ == "DTensor" and layout.grid.size > 1:
        raise _not_replicated(
            "a DTensor (of fully_shard or replicate) is a part of one tensor on all workers", name, layout
        )


def refuse_fully_shard(says: str, modules: Iterable[torch.nn.Module], parameters: Iterable[torch.Tensor]) -> None:
    """Raise `UnsupportedError` if `fully_shard` manages parameters of a distributed model, by itself or from around it.

    While the model runs, it puts tensors of its own into their place.
    """
    if "torch.distributed.fsdp" not in sys.modules or all(isinstance(p, BlockParameter) for p in parameters):
        return
    inside = list(modules)
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if _is_fully_sharded(caller) and any(part is inside[0] for part in caller.modules()):
            inside.append(caller)
        frame = frame.f_back
    if any(map(_is_fully_sharded, inside)):
        raise UnsupportedError(
            f"{says}: fully_shard has taken its parameters, and would average gradients that are sums.",
            fix="leave fully_shard out: gridwise.distribute(model, P_x, parameters='cut') cuts parameters, gradients and "
            "the optimiser's states over the workers.",
        )


def _is_fully_sharded(module: object) -> TypeGuard[torch.nn.Module]:
    return isinstance(module, torch.nn.Module) and "FSDPModule" in {kind.__name__ for kind in type(module).__mro__}


def _not_replicated(what: str, name: str, layout: Layout) -> UnsupportedError:
    return UnsupportedError(
        f"{what} and its gradients are averaged, but `{name}`, of global shape {layout.global_shape}, lies in blocks on "
        f"workers {layout.grid.ranks}.\n  fix: leave it out: the layers sum gradients themselves, and a batch axis of the "
        "grid longer than 1 is data parallelism."
    )


register_optimizer_step_pre_hook(refuse_blocks)
register_module_module_registration_hook(refuse_wrapper)
