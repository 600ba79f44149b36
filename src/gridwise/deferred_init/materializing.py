"""Materialising: deferred tensors and modules become real and keep their identity.

The fake's own Python object becomes the real tensor (`torch.utils.swap_tensors`), so every list, optimiser and
attribute that holds it sees the real one, and tied weights stay tied. Where torch does not allow that (a weak reference
or an autograd graph holds the fake), a new tensor replaces it in the module, and `real_of(fake)` is that tensor from
then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from gridwise.deferred_init.blocks import make_block
from gridwise.deferred_init.random.streams import GENERATOR_LOCK
from gridwise.deferred_init.recording.recorder import RECORDER
from gridwise.deferred_init.recording.replaying import replay
from gridwise.deferred_init.recording.tape import Cell, Value
from gridwise.errors import DeferredInitError
from gridwise.fake.geometry import geometry, is_whole, with_geometry
from gridwise.fake.parameters import FakeUninitialized
from gridwise.fake.tensor import FakeTensor
from gridwise.grid import Box
from gridwise.progress import ProgressBar
from gridwise.torch_internals.tensors import as_class, copy_hooks, is_held_elsewhere, storage_if_alive

_OWN = (
    "dispatcher",
    "meta",
    "given_device",
    "value",
    "became",
    "parameter_class",
    "_is_param",
)  # attributes of the fake itself, not set by the user


def is_pending(tensor: object) -> bool:
    """Whether `tensor` is a deferred tensor that is not real yet."""
    return isinstance(tensor, FakeTensor | FakeUninitialized) and tensor.dispatcher is RECORDER


def deferred_inside(tensor: object) -> Iterator[tuple[Tensor, str]]:
    """Where a tensor that is made of others, such as a DTensor of `fully_shard`, holds deferred ones: (owner, attribute)."""
    if isinstance(tensor, Tensor) and hasattr(type(tensor), "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            inner = getattr(tensor, name)
            if is_pending(inner):
                yield tensor, name
            else:
                yield from deferred_inside(inner)


def make_inside_real(places: Iterable[tuple[Tensor, str]]) -> None:
    """Make these deferred tensors inside others real."""
    held = list(places)
    make_real([getattr(owner, name) for owner, name in held])
    for owner, name in held:
        setattr(owner, name, real_of(getattr(owner, name)))


def check_ours(tensor: Tensor, name: str = "") -> None:
    if isinstance(tensor, FakeTensor | FakeUninitialized) and tensor.dispatcher is not RECORDER:
        raise DeferredInitError(
            f"{name or 'The tensor'} is a fake tensor that was not constructed in a deferred-init context: "
            "how to make it real was never recorded.",
            fix="build the module with gridwise.deferred_init.deferred_init instead of fake_mode.",
        )


def make_real(tensors: Iterable[Tensor], bar: ProgressBar | None = None) -> None:
    """Make these deferred tensors real, all in one replay; `real_of` gives the result for each."""
    with GENERATOR_LOCK:
        _make_real(tensors, bar)


def _make_real(tensors: Iterable[Tensor], bar: ProgressBar | None) -> None:
    pending: dict[int, FakeTensor] = {}
    gradients: list[tuple[FakeTensor, FakeTensor]] = []
    for tensor in tensors:
        if isinstance(tensor, FakeTensor) and "became" not in tensor.__dict__:
            for fake in (*_leaves_behind(tensor), tensor):
                pending[id(fake)] = fake
                gradients += _gradient_of(fake)
    pending |= {id(gradient): gradient for _, gradient in gradients}
    fakes = [fake for fake in pending.values() if "became" not in fake.__dict__]
    storages = _storages([fake.value for fake in fakes if fake.grad_fn is None], bar)
    made: dict[Value, Tensor] = {}
    for leaf in pending.values():  # leaves of an autograd graph may be real already
        if "became" in leaf.__dict__ and leaf.grad_fn is None and leaf.became.shape == leaf.shape:
            made[leaf.value] = leaf.became
    reals: list[Tensor] = []
    for fake in fakes:
        if fake.grad_fn is None:
            real = _leaf(fake, storages[fake.value.cell])
            if fake.requires_grad or fake.value not in made:  # a parameter and its `detach()` share their value
                made[fake.value] = real
        else:
            real = replay([fake.value], given=made)[0]
        reals.append(_with_user_attributes(real, fake))
    for fake, _ in gradients:
        fake.grad = None  # torch refuses to swap a tensor that is in use
    _swap_in(fakes, reals)
    for fake, gradient in gradients:
        real_of(fake).grad = real_of(gradient)


def _gradient_of(fake: FakeTensor) -> list[tuple[FakeTensor, FakeTensor]]:
    """A parameter with its deferred gradient, if it has one."""
    gradient = fake.grad if fake.is_leaf else None
    return [(fake, gradient)] if isinstance(gradient, FakeTensor) else []


def make_blocks(wanted: Sequence[tuple[FakeTensor, Box]], bar: ProgressBar) -> None:
    """Make one block of each of these deferred tensors; the block replaces the tensor, as in `make_real`."""
    bar.total = len(wanted)
    for done, (fake, box) in enumerate(wanted, 1):
        block = block_for(fake, box)
        gradients = [block_for(gradient, box) for _, gradient in _gradient_of(fake)]
        _swap_in([fake], [_with_user_attributes(block, fake)])
        for gradient in gradients:
            real_of(fake).grad = gradient
        bar.report(done)


def block_for(fake: FakeTensor, box: Box) -> Tensor:
    """One block of a deferred tensor, which stays deferred."""
    return _as_parameter(make_block(fake.value, box), fake)


def put_in_place(fake: Tensor, real: Tensor) -> Tensor:
    """Turn a deferred tensor into a real one from elsewhere, such as a checkpoint; whatever holds the fake sees it.

    If `real` is the whole tensor, views of the fake that are materialised later are views of `real`.
    """
    if not isinstance(fake, FakeTensor) or "became" in fake.__dict__:
        return real_of(fake)  # real already: tied tensors come more than once
    if real.shape == fake.shape and real.stride() == fake.stride() and is_whole(fake.meta):
        fake.value.cell.made = StorageWeakRef(real.untyped_storage())
    _swap_in([fake], [_with_user_attributes(real, fake)])
    return real_of(fake)


def real_of(tensor: Tensor) -> Tensor:
    """The real tensor of one that went through `make_real`: itself, or its replacement."""
    return tensor.__dict__.get("became", tensor) if isinstance(tensor, FakeTensor) else tensor


def _leaves_behind(fake: FakeTensor) -> Iterator[FakeTensor]:
    """The deferred leaves of the autograd graph of `fake`."""
    waiting, seen = [fake.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, FakeTensor):
            yield leaf
        waiting += [following for following, _ in node.next_functions]


def _storages(values: list[Value], bar: ProgressBar | None) -> dict[Cell, Tensor]:
    """A real tensor on the storage of every cell; a storage that is real already is reused."""
    found: dict[Cell, Tensor] = {}
    missing: dict[Cell, Value] = {}
    for value in values:
        cell = value.cell
        storage = None if cell.made is None else storage_if_alive(cell.made.cdata)
        if storage is not None:
            found[cell] = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        else:
            missing[cell] = value
    for value, real in zip(missing.values(), replay(list(missing.values()), bar=bar), strict=True):
        found[value.cell] = real
        value.cell.made = StorageWeakRef(real.untyped_storage())
    return found


def _leaf(fake: FakeTensor, real: Tensor) -> Tensor:
    return _as_parameter(with_geometry(real.detach(), geometry(fake.meta)), fake)


def _as_parameter(real: Tensor, fake: FakeTensor) -> Tensor:
    """`real` as an instance of the class that the fake stands for."""
    if getattr(fake, "_is_param", False):
        cls = fake.__dict__.get("parameter_class", nn.Parameter)
        return as_class(real, cls, fake.requires_grad)
    return real.requires_grad_(fake.requires_grad and fake.grad_fn is None)


def _with_user_attributes(real: Tensor, fake: FakeTensor) -> Tensor:
    """`real` with the attributes and hooks that the user set on the fake."""
    for name, attribute in fake.__dict__.items():
        if name not in _OWN:
            setattr(real, name, attribute)
    copy_hooks(real, fake)
    return real


def _swap_in(fakes: list[FakeTensor], reals: list[Tensor]) -> None:
    """Swap each fake for its real tensor. A view keeps its base in use, so failed swaps are retried."""
    pairs = list(zip(fakes, reals, strict=True))
    fakes.clear()
    reals.clear()
    before, refused = len(pairs) + 1, pairs
    while pairs:
        refused = []
        while pairs:
            fake, real = pairs.pop()
            if not _swap(fake, real):
                refused.append((fake, real))
        if len(refused) == before:
            break
        pairs, before = refused, len(refused)
    for fake, real in refused:
        fake.became = real


def _swap(fake: FakeTensor, real: Tensor) -> bool:
    if is_held_elsewhere(real):  # an autograd graph holds it, and swapping would corrupt it
        return False
    try:
        torch.utils.swap_tensors(fake, real)
    except RuntimeError:
        return False
    return True


def uninitialized(lazy: Any) -> Tensor:
    """The real counterpart of a Lazy module's parameter without a shape; the same object at every call."""
    if not hasattr(lazy, "became"):
        options = (lazy.requires_grad, lazy.pretended, lazy.data.dtype)
        if hasattr(lazy, "persistent"):
            lazy.became = UninitializedBuffer(*options, lazy.persistent)  # type: ignore[call-arg]
        else:
            lazy.became = UninitializedParameter(*options)  # type: ignore[call-arg]
    return lazy.became
