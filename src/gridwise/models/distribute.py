"""`distribute`: run an ordinary torch model, or a function of tensors that calls modules, on a grid."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from ..deferred_init import materialize_module
from ..errors import PartitionError, UnsupportedError
from ..memory_sizes import number_of_bytes
from ..nn.engine.module import Module
from ..nn.parameters.blocks import BlockParameter
from ..nn.parameters.replicas import synchronise_replicas
from ..partition import Partition, PartitionLike, as_partition
from .auto_grid import auto_grid
from .inputs import Inputs, as_tensors
from .model import DistributedFunction, DistributedModel, become, runner_of
from .parameters.cutting import cut_parameters
from .recorder import CheckOption, GatherOption, Options
from .recording.containers import flatten
from .replicated_state import replicate_parameters, replicate_state
from .roots import roots_of

ParametersOption = Literal["whole", "cut"]


def distribute(
    model: torch.nn.Module | Callable[..., Any],
    P_x: PartitionLike | Literal["auto"],
    *,
    example: object = None,
    methods: Sequence[str] | None = None,
    gather: GatherOption = "report",
    parameters: ParametersOption = "whole",
    prefetch_bytes: int | str = "64MiB",
    checks: CheckOption = "raise",
    **inputs: object,
) -> DistributedModel:
    """A model that runs on the grid `P_x` with the parameters of `model`, an ordinary torch model.

    Every worker calls it with the same model. The result has the parameters and buffers of `model` itself, not copies:
    an optimiser made before trains it, and models that share parts still do. At the first call with inputs of a new
    structure the model is recorded with the global shapes, and each of its tensors is placed on a grid; `P_y` of the
    result says where the outputs lie. Names and global shapes in `state_dict()` are those of `model`.

    A function of tensors that calls modules is recorded as a whole, a loss included.

    Parameters
    ----------
    model : an ordinary torch model, or a function of tensors
    P_x : the partition of its inputs, that is, of all arguments without a default: a grid of workers, with an axis for
        each dim of the input. A shape, as ``(1, 1, 2, 2)``, is the grid of all workers of that shape: the dims from the
        third on are cut into two parts each, and there are four workers. "auto" is the grid of all workers that
        `gridwise.plan` ranks first for `example`; the `P_x` of the result is then that grid
    example : a global input, or its shape (with the dtype of the parameters); a tuple of them by position, or a dict by
        name. The model is then recorded at once
    methods : names of methods besides `forward` that run on the grid, each recorded separately; `P_of` of the result says
        where the outputs of each lie
    gather : "refuse" raises where a tensor would have to be gathered; see `report()` of the result
    parameters : "cut" keeps a block of each on every worker, and so of its gradient and of the optimiser's states, and
        gathers it while it is used, in forward and again in backward. Make optimisers afterwards
    prefetch_bytes : how many bytes of cut parameters are gathered ahead of their use, and of gradients may be under way
    checks : "skip" leaves out the model's checks on values (``assert x.min() >= 0``), as if all held; otherwise all workers
        agree on them, once per call, and raise what the model raises
    inputs : for other arguments, by name: the partition of their tensors (a single one, or nested like the argument; a
        partition without a grid for tensors that every worker holds whole), or the value at which the argument is held

    Raises
    ------
    UnsupportedError : naming everything in the model that cannot be distributed
    PartitionError : if the workers' models differ in more than their weights; the first worker's weights are used

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
    >>> model = gridwise.distribute(model, (1, 1, 1, 1))  # on four workers (1, 1, 2, 2), say
    >>> model(torch.ones(2, 1, 8, 8)).shape
    torch.Size([2, 144])
    """
    if gather not in ("report", "refuse"):
        raise PartitionError(f"distribute: `gather` (={gather!r}) must be 'report' or 'refuse'.")
    if parameters not in ("whole", "cut"):
        raise PartitionError(f"distribute: `parameters` (={parameters!r}) must be 'whole' or 'cut'.")
    if checks not in ("raise", "skip"):
        raise PartitionError(f"distribute: `checks` (={checks!r}) must be 'raise' or 'skip'.")
    ahead = prefetch_bytes if prefetch_bytes == 0 else number_of_bytes(prefetch_bytes, "distribute", "prefetch_bytes")
    P_x = auto_grid(model, example, parameters) if P_x == "auto" else as_partition(P_x, "distribute")
    if P_x.dim < 1:
        raise PartitionError("distribute needs a partition with an axis for each dim of the model's input.")
    options, cut = Options(gather, int(ahead), checks), parameters == "cut"
    if isinstance(model, torch.nn.Module):
        result = _of_model(model, P_x, tuple(methods or ()), options, cut, inputs)
    elif callable(model) and not isinstance(model, type):
        if methods:
            raise PartitionError("distribute: `methods` are those of a model; a function has none.")
        result = _of_function(model, P_x, options, cut, inputs)
    else:
        raise PartitionError(
            f"distribute: `model` (={model!r}) is no torch.nn.Module and no function.\n  fix: give one of the two."
        )
    if example is not None:
        _prepare(result, example, tuple(methods or ()))
    return result


def _of_model(
    model: torch.nn.Module,
    P_x: Partition,
    methods: tuple[str, ...],
    options: Options,
    cut: bool,
    bindings: Mapping[str, Any],
) -> DistributedModel:
    name = type(model).__name__
    _refuse(model)
    says = f"the distributed {name} on {P_x.shape}"
    grid_methods = {"forward": (says, Inputs(name, model.forward, P_x, bindings), options)}
    for method in methods:
        function = getattr(model, method, None)
        if not callable(function):
            raise PartitionError(f"distribute: {name} has no method {method!r}.")
        grid_methods[method] = f"{method} of {says}", Inputs(f"{name}.{method}", function, P_x, bindings), options
    _check_names(name, bindings, [inputs for _, inputs, _ in grid_methods.values()])
    _check_holders(name, model, P_x)
    if P_x.active:
        synchronise_replicas(model, P_x)
    if cut:
        cut_parameters({name: model}, P_x)
    if P_x.active:
        materialize_module(model)
    twin = _copied(model)
    replicate_parameters([model, twin], P_x)
    replicate_state(twin, P_x)
    return become(twin, P_x, grid_methods)


def _check_holders(name: str, model: torch.nn.Module, P_x: Partition) -> None:
    """Refuse parameters that another distributed model has on other workers only."""
    for key, parameter in model.named_parameters():
        sharding = parameter.sharding if isinstance(parameter, BlockParameter) else None
        if sharding is not None and {*sharding.holders.ranks} != {*P_x.ranks}:
            raise PartitionError(
                f"distribute: `{key}` of {name} belongs to a model on workers {sorted(sharding.holders.ranks)} already, and "
                f"cannot be on {sorted(P_x.ranks)} as well.",
                fix="copy.deepcopy(model) before the first of them is distributed gives each parameters of its own.",
            )


def _of_function(
    function: Callable[..., Any], P_x: Partition, options: Options, cut: bool, bindings: Mapping[str, Any]
) -> DistributedFunction:
    name = getattr(function, "__name__", type(function).__name__)
    roots = roots_of(function)
    for root in roots.values():
        if not isinstance(root, DistributedModel):
            _refuse(root, is_used=True)
            _check_holders(name, root, P_x)
            if P_x.active:
                synchronise_replicas(root, P_x)
    if cut and not all(isinstance(root, DistributedModel) for root in roots.values()):
        raise UnsupportedError(
            f"distribute: `parameters` (='cut') is for models, and {name} is a function that calls some.",
            fix="distribute(model, P_x, parameters='cut') first, and then a function that calls the result.",
        )
    says = f"the distributed {name} on {P_x.shape}"
    inputs = Inputs(name, function, P_x, bindings)
    _check_names(name, bindings, [inputs])
    return DistributedFunction(says, function, roots, inputs, options)


def _check_names(name: str, bindings: Mapping[str, Any], functions: Sequence[Inputs]) -> None:
    unknown = [key for key in bindings if not any(key in inputs.bindings for inputs in functions)]
    if unknown:
        raise PartitionError(f"distribute: the forward of {name} has no argument {', '.join(map(repr, unknown))}.")


def _prepare(model: DistributedModel, example: object, methods: tuple[str, ...]) -> None:
    """Record calls with `example` at once: of `forward`, or of methods, if it is a dict by their names."""
    floating = [p.dtype for p in model.parameters() if p.is_floating_point()]
    dtype = floating[0] if floating else torch.get_default_dtype()
    if methods and isinstance(example, dict) and all(key in ("forward", *methods) for key in example):
        for key, value in example.items():
            runner_of(model, key).prepare(*_arguments(value, dtype))
    else:
        runner_of(model).prepare(*_arguments(example, dtype))


def _arguments(example: object, dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
    value = as_tensors(example, dtype)
    if isinstance(value, dict):
        return (), value
    return (value, {}) if isinstance(value, tuple) else ((value,), {})


def _copied(model: torch.nn.Module) -> torch.nn.Module:
    """A copy with the same tensors; those computed from parameters (by torch's older weight_norm) are copied by value."""
    tensors = flatten([vars(module) for module in model.modules()])[0]
    memo = {id(x): x if x.grad_fn is None else x.detach().clone() for x in tensors}
    try:
        return copy.deepcopy(model, memo)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise UnsupportedError(f"distribute: {type(model).__name__} cannot be copied: {error}") from error


REFUSED: tuple[tuple[Any, str, str], ...] = (
    (DistributedModel | Module, "is already distributed", "give the sequential model"),
    (torch.jit.ScriptModule, "is scripted, and its code cannot be recorded", "give the model"),
    (
        torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel,
        "distributes a model by itself",
        "give its `.module`",
    ),
)
"""Kinds of modules that are refused, why, and what to give instead."""


def _refuse(model: torch.nn.Module, is_used: bool = False) -> None:
    """Refuse models that can be seen to be unsupported without recording them.

    A model that `is_used` by a function is no result itself.
    """
    name = type(model).__name__
    for own, module in model.named_modules():
        place = f"{name}{f', its {own},' if own else ''}"
        for kinds, reason, fix in REFUSED:
            if isinstance(module, kinds) and not (is_used and isinstance(module, DistributedModel)):
                raise UnsupportedError(f"distribute: {place} {reason}.\n  fix: {fix}.")
        if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in module._parameters.values()):
            raise UnsupportedError(
                f"distribute: {place} is lazy: it has no parameters yet.\n  fix: call it once before."
            )
    if type(model).__name__ == "OptimizedModule":
        raise UnsupportedError(
            "distribute: the model is compiled.\n  fix: give the model that was compiled; compile the rest."
        )
    taken = {"P_x", "P_y", "P_of", "report", "_distributed"} & {*dir(model)}
    if taken and not is_used:
        raise UnsupportedError(
            f"distribute: {name} has an attribute {min(taken)!r}, a name that the result needs.\n  fix: rename it."
        )
