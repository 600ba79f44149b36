"""What it means for a materialised model to equal an eager one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that a model holds: parameters, buffers, plain attributes and containers; tied ones each time."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        yield from _inside(prefix, module._parameters)
        yield from _inside(prefix, module._buffers)
        yield from _inside(prefix, {k: v for k, v in vars(module).items() if k not in ("_parameters", "_buffers")})


def _inside(prefix: str, place: dict[str, Any] | list[Any] | tuple[Any, ...]) -> Iterator[tuple[str, Tensor]]:
    for key, item in place.items() if isinstance(place, dict) else enumerate(place):
        if isinstance(item, Tensor):
            yield f"{prefix}.{key}", item
        elif isinstance(item, dict | list | tuple):
            yield from _inside(f"{prefix}.{key}", item)


def as_bytes(t: Tensor) -> bytes:
    return (
        t.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        if t.numel()
        else b""
    )


def assert_same(eager: nn.Module, ours: nn.Module) -> None:
    """Same names, classes, dtypes, strides, flags, bytes, and the same tensors sharing objects and storages."""
    expected, got = dict(tensors_of(eager)), dict(tensors_of(ours))
    assert list(expected) == list(got)
    for name, e in expected.items():
        g = got[name]
        assert type(e) is type(g), name
        assert (e.dtype, e.requires_grad, e.device) == (g.dtype, g.requires_grad, g.device), name
        if is_lazy(e):
            continue
        assert (e.shape, e.stride(), e.storage_offset()) == (g.shape, g.stride(), g.storage_offset()), name
        assert (e.grad_fn is None) == (g.grad_fn is None), name
        assert (e.is_conj(), e.is_neg()) == (g.is_conj(), g.is_neg()), name
        assert as_bytes(e) == as_bytes(g), name
        if e.is_leaf and e.grad is not None:
            assert g.grad is not None, name
            assert as_bytes(e.grad) == as_bytes(g.grad), name
    assert _groups(expected, id) == _groups(got, id)
    shaped = {n: t for n, t in expected.items() if not is_lazy(t) and t.numel()}
    assert _groups(shaped, _storage) == _groups({n: got[n] for n in shaped}, _storage)
    assert list(eager.state_dict()) == list(ours.state_dict())


def _groups(tensors: dict[str, Tensor], key: object) -> list[list[str]]:
    groups: dict[object, list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(key(tensor), []).append(name)  # type: ignore[operator]
    return sorted(groups.values())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
