"""The public functions: identity, choice, threads, and what may happen after construction."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import warnings
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from gridwise.deferred_init import (
    deferred_init,
    is_deferred,
    materialize_module,
    materialize_tensor,
)
from gridwise.deferred_init.recording.replaying import replaying
from gridwise.fake import fake_mode, is_fake

from .equality import assert_same


def test_the_printed_form() -> None:
    layer = deferred_init(nn.Linear, 10, 20)
    assert repr(layer.weight) == "Parameter containing:\ntensor(..., size=(20, 10), requires_grad=True, fake=True)"
    materialize_module(layer)
    assert repr(layer.weight).startswith("Parameter containing:\ntensor([[")
    assert repr(layer.weight).endswith("requires_grad=True)")


class TestIdentity:
    def test_a_real_tensor_is_returned_as_it_is(self) -> None:
        t = torch.ones(3)
        assert materialize_tensor(t) is t

    def test_the_object_itself_becomes_real(self) -> None:
        layer = deferred_init(nn.Linear, 3, 4)
        weight = layer.weight
        held = [weight]
        optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
        assert materialize_tensor(weight) is weight
        assert type(weight) is nn.Parameter
        assert held[0] is layer.weight
        materialize_module(layer)
        layer(torch.ones(2, 3)).sum().backward()
        before = layer.weight.detach().clone()
        optimiser.step()
        assert not torch.equal(before, layer.weight)

    def test_where_it_cannot_the_same_new_one_is_returned_each_time(self) -> None:
        layer = deferred_init(nn.Linear, 3, 4)
        fake = layer.weight
        _ = weakref.ref(fake)  # torch does not swap what has weak references
        keep = weakref.ref(fake)
        real = materialize_tensor(fake)
        assert real is not fake
        assert materialize_tensor(fake) is real
        materialize_module(layer)
        assert layer.weight is real
        assert keep() is fake
        assert not is_deferred(fake)

    def test_attributes_hooks_and_classes_come_along(self) -> None:
        class Split(nn.Parameter):
            pass

        seen: list[Tensor] = []

        def build() -> nn.Module:
            net = nn.Module()
            net.w = Split(torch.ones(3))
            net.w.axis = 1
            net.w.register_hook(seen.append)
            net.w.register_post_accumulate_grad_hook(seen.append)
            return net

        net = deferred_init(build)
        materialize_module(net)
        assert type(net.w) is Split
        assert net.w.axis == 1
        net.w.sum().backward()
        assert len(seen) == 2

    def test_non_leaf_tensors_have_their_graph(self) -> None:
        def build() -> nn.Module:
            layer = nn.Linear(2, 2)
            layer.twice = layer.weight * 2
            return layer

        layer = deferred_init(build)
        materialize_module(layer)
        layer.twice.sum().backward()
        assert torch.equal(layer.weight.grad, torch.full((2, 2), 2.0))


class TestChoice:
    def test_buffers_only(self) -> None:
        net = deferred_init(nn.BatchNorm1d, 3)
        materialize_module(net, buffers_only=True)
        assert not is_deferred(net.running_mean)
        assert is_deferred(net.weight)

    def test_check_fn_gates_a_module_and_not_its_children(self) -> None:
        net = deferred_init(lambda: nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))))
        materialize_module(net, check_fn=lambda m: m is net[1][0])
        assert is_deferred(net[0])
        assert not is_deferred(net[1])

    def test_is_deferred(self) -> None:
        net = deferred_init(nn.Linear, 2, 2)
        assert is_deferred(net)
        assert is_deferred(net.bias)
        assert not is_deferred(nn.Linear(2, 2))
        with pytest.raises(ValueError, match="must be of type `Tensor` or `Module`"):
            is_deferred(3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="has to be a `Tensor`"):
            materialize_tensor(net)  # type: ignore[arg-type]


class TestAfterConstruction:
    @pytest.mark.parametrize(
        "change", [nn.Module.half, nn.Module.double, lambda m: m.to(torch.bfloat16), copy.deepcopy]
    )
    def test_casts_are_recorded(self, change: object) -> None:
        def build() -> nn.Module:
            return nn.Sequential(nn.Linear(5, 6), nn.LSTM(3, 4), nn.BatchNorm1d(2))

        torch.manual_seed(0)
        eager = change(build())  # type: ignore[operator]
        torch.manual_seed(0)
        model = change(deferred_init(build))  # type: ignore[operator]
        assert is_deferred(model)
        materialize_module(model)
        assert_same(eager, model)

    def test_initialising_again_draws_from_the_generator_then(self) -> None:
        torch.manual_seed(0)
        eager = nn.Linear(50, 50)
        nn.init.normal_(eager.weight)
        expected = torch.rand(3)
        torch.manual_seed(0)
        layer = deferred_init(nn.Linear, 50, 50)
        nn.init.normal_(layer.weight)
        assert torch.equal(torch.rand(3), expected)
        materialize_module(layer)
        assert_same(eager, layer)

    def test_numbers_are_written(self) -> None:
        def change(layer: nn.Linear) -> nn.Linear:
            with torch.no_grad():
                layer.weight[0] = 3
                layer.weight[1:, 2] *= torch.tensor(2.0)
            return layer

        torch.manual_seed(0)
        eager = change(nn.Linear(5, 4))
        torch.manual_seed(0)
        layer = change(deferred_init(nn.Linear, 5, 4))
        materialize_module(layer)
        assert_same(eager, layer)

    def test_a_real_model_computes(self) -> None:
        model = deferred_init(nn.Transformer, 16, 2, 1, 1, 32, batch_first=True)
        materialize_module(model)
        model(torch.rand(2, 3, 16), torch.rand(2, 4, 16)).sum().backward()
        assert all(p.grad is not None for p in model.parameters())


def test_a_result_that_torch_lays_out_otherwise_than_its_meta_kernel() -> None:
    def build() -> Tensor:
        return torch.view_as_real(torch.fft.rfft2(torch.randn(4, 6)))[1:]

    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    assert torch.equal(materialize_tensor(deferred_init(build)), eager)


def test_memory_for_a_module_of_the_meta_device_is_deferred_too() -> None:
    layer = deferred_init(nn.utils.skip_init, nn.Linear, 3, 4)
    assert is_deferred(layer)
    materialize_module(layer)
    assert layer(torch.ones(2, 3)).shape == (2, 4)


def test_a_custom_operator_without_a_fake_kernel_runs_at_once() -> None:
    @torch.library.custom_op("gridwise_test::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    assert torch.equal(materialize_tensor(deferred_init(lambda: double(torch.ones(2)))), torch.full((2,), 2.0))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_replay_is_not_autocast(kind: str) -> None:
    before = torch.is_autocast_enabled(kind)
    torch.set_autocast_enabled(kind, True)
    try:
        with replaying():
            assert not torch.is_autocast_enabled(kind)
        assert torch.is_autocast_enabled(kind)
    finally:
        torch.set_autocast_enabled(kind, before)


def test_threads_that_materialise_at_once() -> None:
    def build() -> nn.Module:
        return nn.Sequential(*[nn.Linear(40, 30) for _ in range(10)])

    torch.manual_seed(0)
    eager = [build() for _ in range(3)]
    torch.manual_seed(0)
    models = [deferred_init(build) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=materialize_module, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        expected, drawn = torch.Generator(), torch.rand(50)
        expected.set_state(torch.default_generator.get_state())
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=expected))
    assert drawn.unique().numel() == 50
    for a, b in zip(eager, models, strict=True):
        assert_same(a, b)


class TestNesting:
    def test_inside_itself(self) -> None:
        def build() -> nn.Module:
            return nn.Sequential(nn.Linear(3, 3), deferred_init(nn.Linear, 3, 3))

        torch.manual_seed(0)
        eager = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        torch.manual_seed(0)
        model = deferred_init(build)
        materialize_module(model)
        assert_same(eager, model)

    def test_an_exception_leaves_the_generator_where_eager_does_and_the_mode_off(self) -> None:
        def build() -> None:
            torch.rand(5)
            raise KeyError("mine")

        torch.manual_seed(0)
        torch.rand(5)
        expected = torch.get_rng_state()
        torch.manual_seed(0)
        with pytest.raises(KeyError, match="mine"):
            deferred_init(build)
        assert torch.equal(torch.get_rng_state(), expected)
        assert not is_fake(torch.ones(1))
        assert torch.default_generator is torch._C.default_generator

    def test_a_fill_inside_a_fake_mode_is_recorded(self) -> None:
        tensor = deferred_init(torch.zeros, 3)
        with fake_mode():
            tensor.fill_(2.0)
        assert torch.equal(materialize_tensor(tensor), torch.full((3,), 2.0))

    def test_two_threads(self) -> None:
        models: list[nn.Module] = []
        threads = [threading.Thread(target=lambda: models.append(deferred_init(nn.Linear, 40, 40))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(is_deferred(m) for m in models)
        for model in models:
            materialize_module(model)
        assert len({m.weight[0, 0].item() for m in models}) == 4


def test_memory_of_what_is_dropped_is_freed() -> None:
    """What was made lives as long as a tensor that shares it, and no longer: the record does not hold it."""
    torch.manual_seed(0)
    whole, part = deferred_init(lambda: (lambda t: (t, t[2:]))(torch.rand(5)))
    made = materialize_tensor(whole)
    first, storage = made.tolist(), StorageWeakRef(made.untyped_storage())
    del whole, made
    assert materialize_tensor(part).tolist() == first[2:]
    del part
    gc.collect()
    assert storage.expired()


@pytest.mark.parametrize("first", [("weight_g",), ("weight_v",), ("weight_g", "weight_v"), ()], ids=str)
def test_leaves_that_are_real_already_stay_in_the_graph(first: tuple[str, ...]) -> None:
    """Old `weight_norm` keeps the weight that it computes from two parameters as a plain attribute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.manual_seed(0)
        eager = nn.utils.weight_norm(nn.Linear(6, 4))
        torch.manual_seed(0)
        model = deferred_init(lambda: nn.utils.weight_norm(nn.Linear(6, 4)))
    for name in first:
        materialize_tensor(getattr(model, name))
    materialize_module(model)
    assert torch.equal(model.weight, eager.weight)
    for net in (eager, model):
        net.weight.square().sum().backward()
    for name in ("weight_g", "weight_v"):
        assert torch.equal(getattr(model, name).grad, getattr(eager, name).grad)
