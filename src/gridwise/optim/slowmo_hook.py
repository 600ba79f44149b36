"""Gradients averaged inside a node only: the hook that goes with `SlowMomentumOptimizer` in torch's wrappers."""

from __future__ import annotations

import os

import torch.distributed as dist
from torch import Tensor

from ..torch_internals.comm_hooks import DefaultState, allreduce_hook


class SlowMoState(DefaultState):
    """The workers that gradients are averaged over.

    Parameters
    ----------
    subgroup : the workers of this worker's node; None: found by `LOCAL_WORLD_SIZE`, which torchrun sets
    sync_grads : whether gradients are averaged at all

    Examples
    --------
    >>> state = gridwise.optim.SlowMoState(subgroup=None)  # doctest: +SKIP
    """

    def __init__(self, subgroup: dist.ProcessGroup | None = None, sync_grads: bool = True) -> None:
        self.subgroup = subgroup if subgroup is not None else own_node()[0]
        super().__init__(self.subgroup)
        self.sync_grads = sync_grads


def slowmo_hook(state: SlowMoState, grad: Tensor) -> None:
    """Average `grad`, in place, over the workers of `state`.

    Parameters
    ----------
    state : the workers to average over
    grad : this worker's gradient, changed in place

    Examples
    --------
    >>> model.register_comm_hook(state, gridwise.optim.slowmo_hook)  # doctest: +SKIP
    """
    if state.sync_grads:
        allreduce_hook(state, grad)


def own_node() -> tuple[dist.ProcessGroup, int]:
    """The group of the workers on this machine, and the number of machines; works without CUDA too.

    Found by `LOCAL_WORLD_SIZE`, which torchrun sets; without it, all workers are assumed to be on one machine.
    """
    size = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    size = min(size, dist.get_world_size())
    group, groups = dist.new_subgroups(size)
    return group, len(groups)
