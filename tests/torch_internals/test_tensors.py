"""What tensors, storages and generators tell and do in private."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from gridwise.torch_internals.modes import no_torch_function
from gridwise.torch_internals.tensors import (
    as_class,
    copy_hooks,
    default_generator,
    generator_key,
    is_held_elsewhere,
    is_strided,
    opened_storage,
    shared_handle,
    storage_if_alive,
    storage_key,
    version_of,
    with_lazy_bits,
    wrapper_of,
)


class Wrapped(Tensor):
    layout = "mine"

    def __new__(cls, like: Tensor) -> Wrapped:
        raise AssertionError("not called")


class WithoutData(Wrapped):
    __torch_dispatch__ = no_torch_function


def test_writes_are_counted_for_all_views() -> None:
    x = torch.zeros(4)
    y, before = x[:2], version_of(x)
    y.add_(1)
    assert version_of(x) == version_of(y) == before + 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_storages_are_told_apart(device: str) -> None:
    x, y = torch.ones(4, device=device), torch.ones(4, device=device)
    assert storage_key(x) == storage_key(x[1:]) == storage_key(x.untyped_storage())
    assert storage_key(x) != storage_key(y)


def test_generators_are_told_apart() -> None:
    assert default_generator is torch.default_generator
    assert generator_key(default_generator) == generator_key(torch.random.default_generator)
    assert generator_key(default_generator) != generator_key(torch.Generator())
    torch.manual_seed(5)
    assert default_generator.initial_seed() == 5


def test_the_layout_of_torch_is_that_of_the_memory() -> None:
    assert is_strided(as_class(torch.ones(2), Wrapped, False))
    assert not is_strided(torch.eye(2).to_sparse())


def test_a_tensor_becomes_a_leaf_of_a_class_on_the_same_memory() -> None:
    x = torch.ones(2)
    y = as_class(x, Wrapped, True)
    assert type(y) is Wrapped
    assert y.is_leaf
    assert y.requires_grad
    x.add_(1)
    assert y.detach().as_subclass(Tensor).tolist() == [2, 2]


def test_a_wrapper_has_geometry_and_no_data() -> None:
    like = torch.empty(2, 3, dtype=torch.complex64, device="meta").t().conj()
    made = wrapper_of(WithoutData, like, torch.device("cpu"))
    assert type(made) is WithoutData
    assert made.shape == (3, 2)
    assert made.stride() == (1, 3)
    assert made.is_conj()
    assert made.dtype == torch.complex64
    assert made.device.type == "cpu"


def test_conjugation_and_negation_are_marked_in_place() -> None:
    x = torch.tensor([1 + 2j])
    assert with_lazy_bits(x, True, True) is x
    assert x.resolve_conj().resolve_neg().item() == -1 + 2j


def test_hooks_are_shared() -> None:
    fake, real, calls = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True), list[str]()
    fake.register_hook(lambda gradient: calls.append("gradient"))
    fake.register_post_accumulate_grad_hook(lambda x: calls.append("accumulated"))
    copy_hooks(real, fake)
    real.sin().sum().backward()
    assert calls == ["gradient", "accumulated"]


def test_a_tensor_in_a_graph_is_held_elsewhere() -> None:
    x = torch.ones(2, requires_grad=True)
    assert not is_held_elsewhere(x)
    y = x.sin()
    assert is_held_elsewhere(x)
    del y


def test_a_storage_is_found_as_long_as_it_is_alive() -> None:
    x = torch.ones(2)
    reference, gone = StorageWeakRef(x.untyped_storage()), weakref.ref(x)
    found = storage_if_alive(reference.cdata)
    assert found is not None
    assert storage_key(found) == storage_key(x)
    del x, found
    assert gone() is None
    assert storage_if_alive(reference.cdata) is None


def test_cuda_memory_is_shared_by_handles() -> None:
    """Run on devices by tests/comm/node; here, that torch has both ends."""
    assert callable(torch.UntypedStorage._new_shared_cuda)
    with pytest.raises(RuntimeError, match=r"(?i)cuda"):
        opened_storage(torch.device("cuda", 0), (0, b"", 0, 0, b"", 0, b"", False))
    with pytest.raises((RuntimeError, NotImplementedError), match=r"(?i)cuda|backend"):
        shared_handle(torch.ones(1))
