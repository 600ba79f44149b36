"""What deferred tensors and modules refuse, and how they say so."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gridwise.deferred_init import (
    deferred_init,
    is_deferred,
    materialize_module,
    materialize_tensor,
    reason_for_whole,
)
from gridwise.errors import DeferredInitError, FakeTensorError
from gridwise.fake import fake_mode


class TestRefused:
    def test_arithmetic_with_a_real_tensor(self) -> None:
        layer = deferred_init(nn.Linear, 3, 4)
        with pytest.raises(DeferredInitError, match=r"(?s)aten\.\w+.*called in Linear\.forward.*materialize_module"):
            layer(torch.ones(2, 3))

    def test_a_fake_from_elsewhere(self) -> None:
        with fake_mode():
            stranger = torch.ones(3)
            layer = nn.Linear(2, 2)
        with pytest.raises(DeferredInitError, match=r"aten\.add\.Tensor.*not constructed in a deferred-init context"):
            deferred_init(lambda: torch.ones(3) + stranger)
        with pytest.raises(DeferredInitError, match="not constructed in a deferred-init context"):
            materialize_tensor(stranger)
        with pytest.raises(DeferredInitError, match=r"Linear\.weight is a fake tensor"):
            materialize_module(layer)

    def test_an_external_tensor_that_changed(self) -> None:
        table = torch.ones(3)
        t = deferred_init(lambda: table + torch.rand(3))
        table.add_(1)
        with pytest.raises(DeferredInitError, match=r"(?s)updated in-place.*Materialization cannot be performed"):
            materialize_tensor(t)

    def test_an_array_that_changed(self) -> None:
        scratch, tables = np.zeros(3, dtype=np.float32), []

        def build() -> Tensor:
            for i in range(2):
                scratch[:] = i
                tables.append(torch.empty(3).copy_(torch.from_numpy(scratch)))
            return tables[0]

        first = deferred_init(build)
        with pytest.raises(DeferredInitError, match=r"(?s)a numpy array.*torch\.tensor\(array\)"):
            materialize_tensor(first)
        assert torch.equal(materialize_tensor(tables[1]), torch.ones(3))

    def test_writing_into_an_array_of_what_was_read(self) -> None:
        def build() -> Tensor:
            weight = torch.rand(3)
            weight.numpy()[:] = 0  # would be lost: the values were computed for the moment
            return weight

        with pytest.raises(ValueError, match="read-only"):
            deferred_init(build)

    def test_a_subclass_of_tensor(self) -> None:
        class Mine(Tensor):
            pass

        with pytest.raises(FakeTensorError, match=r"(?s)cannot become a Mine.*after materialisation"):
            deferred_init(lambda: torch.rand(3).as_subclass(Mine))
        plain = deferred_init(lambda: torch.rand(3).as_subclass(Tensor))
        assert materialize_tensor(plain).shape == (3,)

    def test_numbers_that_another_thread_takes(self) -> None:
        def build() -> list[nn.Module]:
            layers = [nn.Linear(3, 3)]
            thread = threading.Thread(target=lambda: layers.append(nn.Linear(3, 3)))
            thread.start()
            thread.join()
            return layers

        with pytest.raises(DeferredInitError, match=r"(?s)another thread.*12 draws.*one thread"):
            deferred_init(build)
        deferred_init(nn.Linear, 3, 3)

    def test_what_is_no_module_and_no_tensor(self) -> None:
        with pytest.raises(TypeError, match="has to be a `Module`, it is a Tensor"):
            materialize_module(torch.ones(2))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="has to be a `Tensor`, it is a Linear"):
            reason_for_whole(nn.Linear(2, 2))  # type: ignore[arg-type]

    def test_an_operator_that_cannot_be_recorded(self) -> None:
        outside = torch.zeros(3)

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                outside.copy_(torch.rand(3))

        with pytest.raises(DeferredInitError, match=r"aten\.copy_\.default, called in .*Net\.__init__.*real tensor"):
            deferred_init(Net)

    def test_a_custom_operator_without_a_meta_kernel_that_writes(self) -> None:
        with torch.library._scoped_library("gridwise_test", "DEF") as library:
            library.define("scramble_(Tensor(a!) x) -> ()")
            library.impl("scramble_", lambda x: None, "CPU")
            with pytest.raises(DeferredInitError, match=r"gridwise_test\.scramble_\.default.*no meta kernel"):
                deferred_init(lambda: torch.ops.gridwise_test.scramble_(torch.ones(2)))

    def test_an_inference_tensor(self) -> None:
        with torch.inference_mode():
            outside = torch.ones(2)
        with pytest.raises(DeferredInitError, match="inference-mode"):
            deferred_init(lambda: torch.rand(2) * outside)

    def test_pickling(self) -> None:
        with pytest.raises(FakeTensorError, match="cannot be pickled"):
            pickle.dumps(deferred_init(nn.Linear, 2, 2))

    def test_writing_to_a_view_of_what_is_real(self) -> None:
        a, b = deferred_init(lambda: (lambda t: (t, t[1:]))(torch.rand(3)))
        real = materialize_tensor(a)
        with pytest.raises(DeferredInitError, match="real already"):
            b.zero_()
        assert materialize_tensor(b).data_ptr() == real[1:].data_ptr()

    def test_wrong_parameters_of_a_fill_are_refused_at_once(self) -> None:
        with pytest.raises(RuntimeError, match="std >= 0"):
            deferred_init(lambda: torch.empty(3).normal_(0, -1))
        with pytest.raises(RuntimeError, match=r"from=2\.0 > to=1\.0"):
            deferred_init(lambda: torch.empty(3).uniform_(2, 1))
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            deferred_init(lambda: nn.Parameter(torch.empty(3)).normal_())


class HalfScripted(nn.Module):
    def __init__(self, part: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.plain = nn.Linear(3, 2)
        self.part = part()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*is deprecated")
def test_a_scripted_module_is_refused_in_words_if_it_is_deferred() -> None:
    for model in (
        torch.jit.script(deferred_init(nn.Linear, 3, 2)),
        deferred_init(HalfScripted, lambda: torch.jit.script(nn.Linear(3, 2))),
    ):
        with pytest.raises(DeferredInitError, match=r"scripted Linear holds deferred.*'weight'"):
            materialize_module(model)
    real = torch.jit.script(nn.Linear(3, 2))
    materialize_module(real)
    model = deferred_init(HalfScripted, lambda: real)
    materialize_module(model)
    assert torch.equal(model.part(torch.ones(3)), real(torch.ones(3)))
    assert not is_deferred(model)


@pytest.mark.parametrize("inside", [False, True])
def test_accelerates_empty_weights_are_refused_in_words(inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`init_empty_weights` makes every parameter anew on the meta device, with its attributes as arguments."""
    register = nn.Module.register_parameter

    def register_empty(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        register(module, name, parameter)
        made = module._parameters[name]
        assert made is not None
        module._parameters[name] = type(made)(made.to("meta"), **made.__dict__, requires_grad=made.requires_grad)

    def build() -> nn.Module:
        with monkeypatch.context() as patched:
            patched.setattr(nn.Module, "register_parameter", register_empty)
            return nn.Linear(3, 2) if inside else deferred_init(nn.Linear, 3, 2)

    with pytest.raises(FakeTensorError, match=r"(?s)init_empty_weights.*fix: leave it out"):
        deferred_init(build) if inside else build()
    assert is_deferred(deferred_init(nn.Linear, 3, 2))
