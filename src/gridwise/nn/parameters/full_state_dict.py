"""The state of the global model, assembled from the blocks of all workers.

    state_dict()         this worker's blocks, with their placement: for the same worker of the same grid
    full_state_dict()    whole tensors under torch's names: for the torch model, another grid, a file that others read
    checkpoint           serves both uses, and no worker ever holds the whole: for large models and for resuming

bytes    each tensor that is cut, or that not all workers hold, goes once to every worker that gets the state
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from ...comm.agreement import all_same, gather_lines
from ...errors import MismatchError, PartitionError
from ...grid import Grid, Layout, Needs, route
from ...partition import Partition, world, zero_volume_tensor
from ..engine.carrier import Move
from .blocks import placement_of
from .saved_blocks import KEY


def full_state_dict(
    model: torch.nn.Module, *, worker: int | None = None, P: Partition | None = None
) -> OrderedDict[str, Tensor]:
    """The state of the global model: what `state_dict()` of the sequential torch model would be, as copies.

    Every worker of `P` calls it. The result loads into the torch model and into distributed ones on any grid.

    Parameters
    ----------
    model : layers on a grid, a model made by `distribute`, or a torch model that has such parts
    worker : the only worker that gets the state, the others get an empty one; default: all get it
    P : the workers that hold the model; default: the world

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> model = torch.nn.Sequential(gridwise.nn.DistributedConv2d(P_x, 1, 4, kernel_size=3), torch.nn.ReLU())
    >>> state = gridwise.nn.full_state_dict(model, worker=0)
    >>> torch.nn.Sequential(torch.nn.Conv2d(1, 4, kernel_size=3), torch.nn.ReLU()).load_state_dict(state)
    <All keys matched successfully>
    """
    partition = P or world()
    held = model.state_dict(keep_vars=True)  # the parameters themselves, which have their placement
    _agree(partition, held, worker)
    targets = partition.team if worker is None else (worker,)
    full: OrderedDict[str, Tensor] = OrderedDict()
    for name, value in held.items():
        whole = _whole(name, value, partition, targets) if isinstance(value, Tensor) else value
        if partition.transport.rank in targets:
            full[name] = whole
    full._metadata = OrderedDict(  # type: ignore[attr-defined]
        (prefix, {key: entry for key, entry in metadata.items() if key != KEY})
        for prefix, metadata in getattr(held, "_metadata", {}).items()
    )
    return full


def _whole(name: str, value: Tensor, P: Partition, targets: tuple[int, ...]) -> Tensor:
    """The global tensor on the `targets`; on the others a zero-volume tensor, or what they hold anyway."""
    layout = placement_of(value)
    data = value.detach().as_subclass(Tensor)
    if not isinstance(layout, Layout):
        return data.clone() if P.transport.rank in targets else data
    if not layout.global_shape:  # a single number
        layout = Layout.balanced(Grid(layout.grid.ranks, (1,)), (1,))
        whole = _whole_of(name, data.reshape(-1), layout, P, targets)
        return whole.reshape(()) if whole.numel() else whole
    return _whole_of(name, data, layout, P, targets)


def _whole_of(name: str, data: Tensor, layout: Layout, P: Partition, targets: tuple[int, ...]) -> Tensor:
    everywhere = Grid(targets, (len(targets), *(1,) * (layout.grid.dim - 1)))
    rows, *others = [((0, extent),) for extent in layout.global_shape]
    needs = Needs(everywhere, (rows * len(targets), *others), (False,) * layout.grid.dim)
    plan = route(layout, needs, P.transport.rank)

    def nothing(x: Tensor) -> Tensor:
        return zero_volume_tensor(dtype=x.dtype, device=x.device)

    return Move(P.transport, P.team, f"full_state_dict: {name}", plan, nothing)(data)


def _agree(P: Partition, held: dict[str, object], worker: int | None) -> None:
    """Raise on all workers unless all have the same names, kinds of tensors and `worker`."""
    if worker is not None and worker not in P.team:
        raise PartitionError(f"full_state_dict: `worker` (={worker}) is no worker of {P}.")
    said = [f"worker={worker}"]
    for name, value in held.items():
        if isinstance(value, Tensor):
            layout = placement_of(value)
            shape = layout.global_shape if isinstance(layout, Layout) else tuple(value.shape)
            said.append(f"{name} {shape} {value.dtype} {layout}")
    if not all_same(P.transport, P.team, "full_state_dict", "; ".join(said)):
        raise MismatchError(
            "full_state_dict: the workers hold different models, or ask for another `worker`.",
            gather_lines(
                P.transport, P.team, f"worker={worker}, {len(held)} entries, {', '.join(list(held)[:3])}, ..."
            ),
            "call it on all workers, with the same model and the same `worker`.",
        )
