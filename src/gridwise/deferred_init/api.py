"""The functions of `gridwise.deferred_init`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from torch import Tensor, nn

from gridwise.deferred_init.materializing import check_ours, is_pending, make_real, real_of, uninitialized
from gridwise.deferred_init.recording import RECORDER
from gridwise.deferred_init.streams import Ledger, watched
from gridwise.fake.lazy import FakeUninitialized, lazy_parameters_of
from gridwise.fake.mode import FakeFactories

P = ParamSpec("P")
T = TypeVar("T")

_recording = threading.RLock()  # one constructor at a time: they share the default generator


def deferred_init(module_fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `module_fn(*args, **kwargs)` gives, with fake tensors that remember how to become real."""
    with _recording:
        if RECORDER.ledger is not None:
            return module_fn(*args, **kwargs)
        RECORDER.ledger = ledger = Ledger()
        try:
            with watched(ledger), lazy_parameters_of(RECORDER), FakeFactories(RECORDER):
                return module_fn(*args, **kwargs)
        finally:
            RECORDER.ledger = None
            ledger.settle()


def is_deferred(obj: Tensor | nn.Module) -> bool:
    """Whether a tensor, or any parameter or buffer of a module, is still to be materialised."""
    if isinstance(obj, nn.Module):
        return any(is_pending(t) for m in obj.modules() for t in (*m._parameters.values(), *m._buffers.values()))
    if isinstance(obj, Tensor):
        return is_pending(obj) and real_of(obj) is obj
    raise ValueError("`obj` must be of type `Tensor` or `Module`.")


def materialize_tensor(tensor: Tensor) -> Tensor:
    """The real tensor of a deferred one, the same object at every call; a real tensor is returned as it is."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"`tensor` has to be a `Tensor`, it is a {type(tensor).__name__}.")
    check_ours(tensor)
    if isinstance(tensor, FakeUninitialized):
        return uninitialized(tensor)
    make_real([tensor])
    return real_of(tensor)


def materialize_module(
    module: nn.Module, buffers_only: bool = False, check_fn: Callable[[nn.Module], bool] | None = None
) -> None:
    """Make the parameters and buffers of a module, and of all its children, real, in place."""
    chosen = [m for m in _children_first(module) if check_fn is None or check_fn(m)]
    targets = [(m, place, name) for m in chosen for place, name in _deferred_places(m, buffers_only)]
    for owner, place, name in targets:
        check_ours(place[name], f"{type(owner).__qualname__}.{name}")
    make_real([place[name] for _, place, name in targets])
    for _, place, name in targets:
        tensor = place[name]
        place[name] = uninitialized(tensor) if isinstance(tensor, FakeUninitialized) else real_of(tensor)
    for owner in chosen:
        if isinstance(owner, nn.RNNBase) and not buffers_only:
            owner._init_flat_weights()  # it keeps weak references to its parameters


def _children_first(module: nn.Module) -> Iterator[nn.Module]:
    seen: set[int] = set()

    def walk(m: nn.Module) -> Iterator[nn.Module]:
        if id(m) not in seen:
            seen.add(id(m))
            for child in m.children():
                yield from walk(child)
            yield m

    return walk(module)


def _deferred_places(module: nn.Module, buffers_only: bool) -> Iterator[tuple[Any, Any]]:
    """Where a module keeps deferred tensors: (container, key). Plain attributes and lists in them count as well."""
    places: list[Any] = [module._buffers] if buffers_only else [module._parameters, module._buffers, module.__dict__]
    if not buffers_only:
        places += [a for a in module.__dict__.values() if isinstance(a, list)]
    for place in places:
        for key, item in list(place.items() if isinstance(place, dict) else enumerate(place)):
            if is_pending(item) or (isinstance(item, Tensor) and not buffers_only and hasattr(item, "keeper")):
                yield place, key
