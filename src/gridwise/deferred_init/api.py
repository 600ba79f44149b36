"""The public functions of `gridwise.deferred_init`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from gridwise.deferred_init.blocks import reason_for_whole as block_reason
from gridwise.deferred_init.materializing import (
    block_for,
    check_ours,
    deferred_inside,
    is_pending,
    make_blocks,
    make_inside_real,
    make_real,
    real_of,
    uninitialized,
)
from gridwise.deferred_init.random.streams import watched
from gridwise.deferred_init.recording.recorder import RECORDER
from gridwise.deferred_init.recording.whole_functions import recorded_whole
from gridwise.deferred_init.sharding import Layout, Slices, box_of, check_layout, slices_for
from gridwise.errors import DeferredInitError, PartitionError
from gridwise.fake.mode import FakeFactories
from gridwise.fake.parameters import FakeUninitialized, parameters_of
from gridwise.fake.tensor import FakeTensor
from gridwise.grid import Box
from gridwise.progress import ProgressBar
from gridwise.torch_internals.modules import refresh_rnn

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 1.0  # seconds before a progress bar appears

_recording = threading.RLock()  # one constructor at a time: they share the default generator


def deferred_init(module_fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `module_fn(*args, **kwargs)`, with fake tensors that record how to become real.

    Parameters
    ----------
    module_fn : a class of modules, or any function
    *args, **kwargs : its arguments

    Notes
    -----
    No random numbers are drawn, but the generators end in the state that running `module_fn` would have left, and what
    is materialised later equals the eager result bit for bit, in any order. Operations on the tensors afterwards
    (`.half()`, `.to()`, in-place operators) are recorded too. Where the constructor reads data (`item()`, `tolist()`,
    `if tensor.any()`), the tensors needed for that are computed on the spot and not kept.

    Inside a constructor, use the default CPU generator through `torch` (`torch.get_rng_state`, `torch.manual_seed`,
    `torch.random.fork_rng`, `torch.default_generator`, ...): these see the state that eager construction would have. A
    reference to the generator object taken earlier sees it unchanged until `deferred_init` returns.

    Examples
    --------
    >>> model = deferred_init(torch.nn.Linear, 10, 20)
    >>> model.weight
    Parameter containing:
    tensor(..., size=(20, 10), requires_grad=True, fake=True)
    >>> materialize_module(model)
    """
    with _recording:
        if RECORDER.counter is not None:
            return module_fn(*args, **kwargs)
        try:
            with (
                watched(RECORDER.begin()),
                recorded_whole(RECORDER),
                parameters_of(RECORDER),
                FakeFactories(RECORDER),
            ):
                return module_fn(*args, **kwargs)
        finally:
            RECORDER.end()


def is_deferred(obj: Tensor | nn.Module) -> bool:
    """Whether a tensor, or any parameter or buffer of a module, has yet to be materialised.

    Parameters
    ----------
    obj : a tensor or a module

    Examples
    --------
    >>> model = gridwise.deferred_init.deferred_init(torch.nn.Linear, 3, 2)
    >>> is_deferred(model), is_deferred(torch.ones(1))
    (True, False)
    """
    if isinstance(obj, nn.Module):
        tensors = [t for m in obj.modules() for t in (*m._parameters.values(), *m._buffers.values())]
        return any(is_pending(t) or any(deferred_inside(t)) for t in tensors)
    if isinstance(obj, Tensor):
        return (is_pending(obj) and real_of(obj) is obj) or any(deferred_inside(obj))
    raise ValueError("`obj` must be of type `Tensor` or `Module`.")


def materialize_tensor(tensor: Tensor) -> Tensor:
    """The real tensor of a deferred one, the same object at every call; a real tensor is returned as it is.

    The deferred tensor's own Python object becomes real, so every other reference to it sees the real tensor. Where
    torch does not allow that (a weak reference, a view or an autograd graph holds it), a new tensor is returned.

    Parameters
    ----------
    tensor : a deferred tensor, or a real one

    Examples
    --------
    >>> model = gridwise.deferred_init.deferred_init(torch.nn.Linear, 3, 2)
    >>> materialize_tensor(model.bias).shape
    torch.Size([2])
    """
    _check_tensor(tensor)
    check_ours(tensor)
    if isinstance(tensor, FakeUninitialized):
        return uninitialized(tensor)
    make_inside_real(deferred_inside(tensor))
    make_real([tensor])
    return real_of(tensor)


def materialize_shard(tensor: Tensor, slices: Slices) -> Tensor:
    """The block `slices` of a deferred tensor, bitwise equal to that slice of the eagerly built tensor.

    Parameters
    ----------
    tensor
        A deferred tensor, which stays deferred, or a real one, of which the block is copied.
    slices
        One slice of step 1 per dim, or a box of `gridwise.grid`; trailing dims may be left out. As in `tensor[slices]`,
        negative numbers count from the end, and slices are clipped to the tensor.

    Notes
    -----
    Memory: the block, a scratch buffer of 4 MiB (float32), and the same block of every other tensor that it was
    computed from. A tensor whose blocks cannot be made separately (`orthogonal_`, `sparse_`, a strided or complex fill,
    functions that round differently on a block, anything on CUDA) is made whole temporarily; see `reason_for_whole`.

    Examples
    --------
    >>> model = gridwise.deferred_init.deferred_init(torch.nn.Linear, 3, 2)
    >>> materialize_shard(model.weight, (slice(0, 1),)).shape
    torch.Size([1, 3])
    """
    _check_tensor(tensor)
    check_ours(tensor)
    tensor = real_of(tensor)
    if any(deferred_inside(tensor)):
        raise DeferredInitError(
            f"materialize_shard: the {type(tensor).__name__} holds this worker's part of a deferred tensor already.",
            fix="materialize_tensor makes that part real.",
        )
    box = box_of(slices, tensor.shape, "the tensor")
    if isinstance(tensor, FakeTensor):
        return block_for(tensor, box)
    block = tensor.detach()[box.slices].clone(memory_format=torch.contiguous_format)
    return nn.Parameter(block, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else block


def reason_for_whole(tensor: Tensor) -> str | None:
    """Why blocks of a deferred tensor have to be cut from the whole tensor; None if they can be made separately.

    Parameters
    ----------
    tensor : a deferred tensor

    Examples
    --------
    >>> model = gridwise.deferred_init.deferred_init(torch.nn.Linear, 3, 2)
    >>> print(reason_for_whole(model.weight))
    None
    """
    _check_tensor(tensor)
    check_ours(tensor)
    return block_reason(tensor.value) if isinstance(tensor, FakeTensor) else None


def _check_tensor(tensor: object) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"`tensor` has to be a `Tensor`, it is a {type(tensor).__name__}.")


def materialize_module(
    module: nn.Module,
    buffers_only: bool = False,
    check_fn: Callable[[nn.Module], bool] | None = None,
    *,
    layout: Layout | None = None,
    rank: int | None = None,
    progress: bool | None = None,
) -> None:
    """Make the parameters and buffers of a module and all its children real, in place.

    Parameters
    ----------
    module
        A module from `deferred_init`; tensors that are real already stay as they are.
    buffers_only
        Leave the parameters deferred.
    check_fn
        Called with each module; decides whether its own tensors are materialised. Its children are asked separately.
    layout
        Make only a block of each tensor: a function of its name and shape that returns slices (None: all of it), or a
        mapping from names to layouts of `gridwise.grid`, of which the block of worker `rank` is made.
    rank
        The worker whose blocks are made, if `layout` is a mapping.
    progress
        Show a progress bar if it takes longer than a second; by default if standard error is a terminal.

    Examples
    --------
    >>> model = gridwise.deferred_init.deferred_init(torch.nn.Linear, 3, 2)
    >>> materialize_module(model)
    >>> is_deferred(model)
    False
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"`module` has to be a `Module`, it is a {type(module).__name__}: see materialize_tensor.")
    chosen = [m for m in _children_first(module) if check_fn is None or check_fn(m)]
    chosen = [m for m in chosen if not _is_scripted(m, buffers_only)]
    parts = [part for m in chosen for part in _deferred_parts(m, buffers_only)]
    if parts and layout is not None:
        raise PartitionError(
            "materialize_module: `layout` was given, and the module's tensors are cut already, by `fully_shard` for example.",
            fix="leave out `layout`: what is made are the parts.",
        )
    make_inside_real(parts)
    targets = [(m, place, name) for m in chosen for place, name in _deferred_places(m, buffers_only)]
    if not targets and layout is None:
        return
    for owner, place, name in targets:
        check_ours(place[name], f"{type(owner).__qualname__}.{name}")
    tensors = [place[name] for _, place, name in targets]
    blocks = [] if layout is None else _blocks(module, tensors, layout, rank)
    cut = {id(fake) for fake, _ in blocks}
    with closing(ProgressBar("materialising", None, progress, PATIENCE, stays=False)) as bar:
        make_blocks(blocks, bar)
        make_real([t for t in tensors if id(t) not in cut], bar)
    for _, place, name in targets:
        tensor = place[name]
        place[name] = uninitialized(tensor) if isinstance(tensor, FakeUninitialized) else real_of(tensor)
    for owner in chosen:
        if isinstance(owner, nn.RNNBase) and not buffers_only:
            refresh_rnn(owner)  # it keeps weak references to its parameters


def _blocks(module: nn.Module, tensors: list[Tensor], layout: Layout, rank: int | None) -> list[tuple[FakeTensor, Box]]:
    """The deferred tensors among `tensors` that `layout` cuts, each with the box of its block."""
    wanted = {id(tensor) for tensor in tensors}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    check_layout(layout, rank, [name for name, _ in named])
    cut: dict[int, tuple[str, FakeTensor, Box]] = {}
    for name, tensor in named:
        if id(tensor) not in wanted or not isinstance(tensor, FakeTensor):
            continue
        slices = slices_for(layout, rank, name, tensor.shape)
        box = Box.of_shape(tensor.shape) if slices is None else box_of(slices, tensor.shape, name)
        first, _, agreed = cut.setdefault(id(tensor), (name, tensor, box))
        if box != agreed:
            raise PartitionError(
                f"materialize_module: {first} and {name} are one tensor, and `layout` cuts it in two ways:",
                [f"{first}: {agreed.start} to {agreed.stop}", f"{name}: {box.start} to {box.stop}"],
                fix="give tied tensors the same slices.",
            )
    blocks = {k: c for k, c in cut.items() if c[2] != Box.of_shape(c[1].shape)}
    _refuse_views(blocks, {id(t): t for t in tensors if isinstance(t, FakeTensor)})
    return [(tensor, box) for _, tensor, box in blocks.values()]


def _refuse_views(blocks: dict[int, tuple[str, FakeTensor, Box]], tensors: dict[int, FakeTensor]) -> None:
    """Raise for a block of a tensor that shares its storage with another: cutting it would separate the two."""
    owners: dict[Any, int] = {}
    for key, tensor in tensors.items():
        other = owners.setdefault(tensor.value.cell, key)
        if other != key and (key in blocks or other in blocks) and tensor.grad_fn is None:
            name = blocks[key if key in blocks else other][0]
            raise PartitionError(
                f"materialize_module: {name} shares its storage with another tensor of the module, and a block "
                "of it alone would separate the two.",
                fix="let `layout` give None for it, or do not make views of parameters in the constructor.",
            )


def _is_scripted(module: nn.Module, buffers_only: bool) -> bool:
    """Whether a module is scripted; raises if it has deferred tensors, which TorchScript does not let us replace."""
    if not isinstance(module, torch.jit.ScriptModule):
        return False
    own = [*(() if buffers_only else module._parameters.items()), *module._buffers.items()]
    deferred = [name for name, tensor in own if is_pending(tensor)]
    if deferred:
        raise DeferredInitError(
            f"materialize_module: a scripted {module.original_name} holds deferred tensors "
            f"({', '.join(map(repr, deferred))}), and TorchScript does not let them be exchanged for real ones.",
            fix="materialise the module first, then call torch.jit.script on it.",
        )
    return True


def _children_first(module: nn.Module) -> Iterator[nn.Module]:
    seen: set[int] = set()

    def walk(m: nn.Module) -> Iterator[nn.Module]:
        if id(m) not in seen:
            seen.add(id(m))
            for child in m.children():
                yield from walk(child)
            yield m

    return walk(module)


def _deferred_parts(module: nn.Module, buffers_only: bool) -> Iterator[tuple[Tensor, str]]:
    """The deferred parts of a module's tensors that are cut."""
    for tensor in (*(() if buffers_only else module._parameters.values()), *module._buffers.values()):
        yield from deferred_inside(tensor)


def _deferred_places(module: nn.Module, buffers_only: bool) -> Iterator[tuple[Any, Any]]:
    """Where a module keeps deferred tensors: (container, key). Includes plain attributes and containers in them."""
    if buffers_only:
        yield from ((module._buffers, key) for key, item in module._buffers.items() if is_pending(item))
        return
    waiting: list[Any] = [module._parameters, module._buffers, module.__dict__]
    seen = {id(module._modules): module._modules}  # kept alive, so that ids are not reused
    while waiting:
        place = waiting.pop(0)
        if id(place) in seen:
            continue
        seen[id(place)] = place
        for key, item in list(place.items() if isinstance(place, dict) else enumerate(place)):
            if isinstance(item, Tensor):
                if is_pending(item) or hasattr(item, "dispatcher"):
                    yield place, key
            elif isinstance(item, list | dict):
                waiting.append(item)
            elif isinstance(item, tuple | set | frozenset):
                waiting.append(list(item))  # cannot be assigned to, but the objects in it become real themselves
