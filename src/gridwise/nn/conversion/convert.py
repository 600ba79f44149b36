"""From a torch model to one on a grid: walk its graph, keep track of every tensor's grid, and name what does not fit.

Every tensor of the graph lies on some partition, with one axis per dim. A rule says what a node makes of it:

    a layer              the distributed layer of the same name; the grid stays
    elementwise          as it is; tensors on other grids, or that broadcast along cut dims, are lined up first (`joining`)
    along or over dims   as it is, if these dims are whole; sums over cut ones are added (`reducing`); otherwise the dims
                         are gathered and another is cut instead, the batch as a rule, by one repartition
    other dims           the grid's axes follow those of the tensor (`reshaping`, `indexing`)
    products             dims that the result and all tensors on the grid share may be cut (`products`, `recurrent`)
    sizes                those of the global tensor
    parameters           outside of layers: whole on every worker, their gradients summed (`held`)

What has no rule is collected, all of it, and raised before anything runs.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import torch

from ...deferred_init import is_deferred
from ...errors import PartitionError, UnsupportedError, describe
from ...partition import Partition
from ..engine.agreement import key_of
from ..engine.module import Module
from ..parameters.replicas import check_replicas
from . import layers
from .held import hold
from .inputs import Inputs
from .lost import refuse_lost
from .model import DistributedModel
from .nodes import Conversion
from .rehearsal import Rehearsal
from .trace import traced


def distribute(model: torch.nn.Module, P_x: Partition, **inputs: Any) -> DistributedModel:
    """A model that runs on the grid `P_x` with the weights of `model`, an ordinary torch model.

    Every worker calls it with the same model; `model` itself is not changed. Its modules are replaced by distributed ones,
    elementwise functions, additions and concatenations run as they are, and where it flattens space, the batch is cut
    instead (`P_y` of the result says where the output lies). Names and global shapes in `state_dict()` are those of `model`;
    a single layer becomes number 0 of a `Sequential`, with names such as ``0.weight``: its own class is `nn.Distributed...`.

    Parameters
    ----------
    model : an ordinary torch model
    P_x : the partition of its inputs: of all arguments of `forward` that have no default
    inputs : for other arguments of `forward`, by name, the partition on which a tensor lies, or the value that an argument
        is held at. Arguments with a default are held at it

    Raises
    ------
    UnsupportedError : naming everything in the model that cannot be converted
    PartitionError : if the workers' models differ in names or shapes

    Workers whose weights differ (of models that were seeded differently, say) take those of the first worker of `P_x`, with a
    warning, as distributed layers do.

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, 1])
    >>> model = gridwise.distribute(torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten()), P_x)
    >>> model(torch.ones(2, 1, 8, 8)).shape
    torch.Size([2, 144])
    """
    _check(model, P_x)
    name = type(model).__name__
    if layers.has_layer(model):  # a model of one layer
        model = torch.nn.Sequential(model)
    twin = _copied(model)
    taken = Inputs.of(twin, P_x, inputs)
    graph = traced(twin, taken)
    says = f"the distributed {name} on {P_x.shape}"
    rehearsal = Rehearsal(twin, graph, says)
    walk = Conversion(twin, graph, P_x, taken)
    with torch.random.fork_rng(devices=[]):  # building layers draws initial values, which loading replaces
        torch.default_generator.manual_seed(0)
        walk.run()
        if walk.problems:
            fix = "write these with torch's modules, or keep that part of the model sequential."
            raise UnsupportedError(
                describe(f"distribute: {name} has parts that cannot be converted.", walk.problems, fix)
            )
        if P_x.active:
            _synchronise(model, twin, P_x)
        walk.build()
    result = DistributedModel(walk.model, graph, f"Distributed{name}")
    rehearsal.checks = walk.checks
    kind = next(node.meta.get("kind", dict) for node in graph.nodes if node.op == "output")
    result._start(walk.model, taken, P_x, walk.output_partitions(), rehearsal, kind)
    hold(result, walk.parameters, P_x)
    result.train(model.training)
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in result.named_modules():
        module.training = modes.get(name, module.training)
    return result


def _synchronise(model: torch.nn.Module, twin: torch.nn.Module, P_x: Partition) -> None:
    """Let the copy have the weights of the first worker, with a warning, if those of the workers differ."""
    try:
        check_replicas(model, P_x)
        return
    except PartitionError as error:
        differing = error
    transport, team, what = P_x.transport, P_x.team, "distribute"
    held = dict([*twin.named_parameters(), *twin.named_buffers()])
    key = key_of(repr([(name, tuple(value.shape), value.dtype) for name, value in held.items()]))
    votes = np.array([key, -key], dtype=np.int64)
    transport.all_max(votes, team, what)
    if votes[0] != -votes[1]:
        raise differing
    for value in held.values():
        if not is_deferred(value) and not value.is_meta:
            block = value.detach().clone(memory_format=torch.contiguous_format)
            transport.copy_from(block, team[0], team, what)
            value.data.copy_(block)
    warnings.warn(
        f"distribute: the weights of {type(model).__name__} differ on workers {team}. All take those of worker {team[0]}. Call "
        "torch.manual_seed with one seed on all workers, or load the same state.",
        stacklevel=3,
    )


def _copied(model: torch.nn.Module) -> torch.nn.Module:
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise UnsupportedError(f"distribute: {type(model).__name__} cannot be copied: {error}") from error


def _check(model: torch.nn.Module, P_x: Partition) -> None:
    """Refuse what needs no look into the model."""
    if not isinstance(model, torch.nn.Module):
        raise PartitionError(
            f"distribute: `model` (={model!r}) is no torch.nn.Module.\n  fix: make it the `forward` of one."
        )
    if not isinstance(P_x, Partition) or P_x.dim < 1:
        raise PartitionError("distribute needs a partition with an axis for each dim of the model's input.")
    name = type(model).__name__
    for own, module in model.named_modules():
        if isinstance(module, DistributedModel | Module):
            raise UnsupportedError(
                f"distribute: {name}{f', its {own},' if own else ''} is already distributed.\n  fix: give the sequential model."
            )
    refuse_lost(model)
    own = {*dir(DistributedModel), *DistributedModel.__annotations__} - set(dir(torch.nn.Module))
    for part in (*model._modules, *model._parameters, *model._buffers):
        if part in own:
            raise UnsupportedError(f"distribute: {name} has a part called {part!r}, a name that the result needs.")
