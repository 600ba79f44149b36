"""Parameters as blocks: each worker of the grid keeps its part of each, and the optimiser's states follow.

    weight (768, 3072) on 4 workers    (192, 3072) each
    bias (10,)                         3, 3, 2, 2; the larger blocks of the next bias go to the next workers

A block has the dims of its parameter, cut where the blocks come out most even. What is left over goes round the workers, so
that all hold about the same bytes. Parameters of fewer elements than workers, and buffers, stay whole. The objects are new:
an optimiser that was made before has the former ones, which are empty from then on (`nn.parameters.whole_tensor`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ...deferred_init import is_deferred, materialize_shard
from ...errors import PartitionError
from ...grid import Grid
from ...grid.arrange import arranged
from ...nn.parameters.blocks import BlockParameter, Sharding, is_cut
from ...nn.parameters.whole_tensor import mark_replaced
from ...partition import Partition
from ...torch_internals.modules import refresh_rnn
from ...torch_internals.tensors import copy_hooks


def cut_parameters(models: Mapping[str, torch.nn.Module], P: Partition) -> None:
    """Replace parameters of models by this worker's blocks; deferred ones are made as blocks. Cut ones stay as they are."""
    kept: dict[int, tuple[Tensor, Tensor]] = {}  # the key is an id: the original must stay alive
    turn = 0
    for name, value in _parameters(models.values()):
        if not is_worth_cutting(value, P.size) or is_cut(value):
            continue
        if isinstance(value, BlockParameter):
            raise PartitionError(
                f"distribute: `{name}` is whole in a model that was distributed before, and cannot be cut as well.",
                fix="parameters='cut' for both, or copy.deepcopy(model) before the first of them is distributed.",
            )
        sharding, turn = sharding_of(value.shape, P.ranks, turn)
        kept[id(value)] = value, _block(value, sharding, P)
    for module in (module for model in models.values() for module in model.modules()):
        for key, parameter in module._parameters.items():
            if id(parameter) in kept:
                module._parameters[key] = kept[id(parameter)][1]  # type: ignore[assignment]
        if isinstance(module, torch.nn.RNNBase):
            refresh_rnn(module, are_whole=False)


def _parameters(models: Iterable[torch.nn.Module]) -> Iterable[tuple[str, Tensor]]:
    """The parameters of models, each once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for model in models:
        for name, value in model.named_parameters():
            found.setdefault(id(value), (name, value))
    return found.values()


def is_worth_cutting(value: Tensor, workers: int) -> bool:
    """Whether there is an element of a parameter for each of several workers."""
    return value.numel() >= workers > 1


def sharding_of(shape: Iterable[int], ranks: tuple[int, ...], turn: int = 0) -> tuple[Sharding, int]:
    """How a parameter is cut over workers, the first block going to number `turn` of them; and whose turn is next."""
    shape = tuple(shape)
    extents = arranged(shape, len(ranks))
    larger = 1
    for n, p in zip(shape, extents, strict=True):
        larger *= n % p or p  # so many of the blocks along this dim are larger than the others
    holders = Grid((*ranks[turn:], *ranks[:turn]), extents)
    return Sharding(holders, tuple(range(len(shape))), shape), (turn + larger) % len(ranks)


def _block(value: Tensor, sharding: Sharding, P: Partition) -> BlockParameter:
    """This worker's block of a parameter, in its place; the parameter is emptied."""
    rank = P.transport.rank
    box, nothing = sharding.block(rank), (slice(0, 0),)
    if is_deferred(value):
        data = materialize_shard(value, nothing if box is None else box.slices).detach()
    else:
        data = value.detach()[nothing if box is None else box.slices].clone()
    block = BlockParameter(data, value.requires_grad)
    sharding.label(block, P.transport)
    if not is_deferred(value):
        block.__dict__.update({k: v for k, v in vars(value).items() if k not in vars(block)})
        copy_hooks(block, value)
        value.data, value.grad = value.data.new_empty(0), None
    mark_replaced(value)
    return block
