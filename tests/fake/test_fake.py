"""Fake tensors: the printed forms, devices that are not there, everything torch.nn offers, and what a fake refuses."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from gridwise.errors import FakeTensorError
from gridwise.fake import fake_mode, is_fake, meta_like

from ..deferred_init.cases import CASES
from ..deferred_init.equality import tensors_of

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without CUDA")
LAYERS = [name for name in CASES if name[0].isupper()]


def test_the_documented_example() -> None:
    with fake_mode(fake_cuda=not torch.cuda.is_available()):
        a = torch.ones([10])
        b = torch.ones([20], device="cuda")
    assert repr(a) == "tensor(..., size=(10,), fake=True)"
    assert repr(b) == "tensor(..., size=(20,), device=cuda, fake=True)"


@no_cuda
def test_without_cuda_the_error_says_what_to_do() -> None:
    with pytest.raises(FakeTensorError, match=r"fake_mode\(fake_cuda=True\)"), fake_mode():
        torch.ones([20], device="cuda")
    with fake_mode(fake_cuda=True):
        torch.ones(2, device="cuda")
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
        torch.ones(2, device="cuda")


def test_other_printed_forms() -> None:
    with fake_mode(fake_cuda=True):
        t = torch.zeros(2, 3, dtype=torch.int64, device="cuda:1")
        p = nn.Parameter(torch.rand(3))
    assert repr(t) == "tensor(..., size=(2, 3), dtype=torch.int64, device=cuda:1, fake=True)"
    assert repr(p) == "Parameter containing:\ntensor(..., size=(3,), requires_grad=True, fake=True)"
    assert f"{p}" == repr(p)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_on_a_cuda_device_that_is_not_there(name: str) -> None:
    eager = CASES[name]()
    with fake_mode(fake_cuda=True), torch.device("cuda"):
        layer = CASES[name]()
    expected, got = dict(tensors_of(eager)), dict(tensors_of(layer))
    assert list(expected) == list(got)
    for key, tensor in got.items():
        if is_fake(tensor) and not nn.parameter.is_lazy(tensor):
            real = expected[key]
            assert (tensor.shape, tensor.stride(), tensor.dtype) == (real.shape, real.stride(), real.dtype)
            assert tensor.is_cuda
            assert isinstance(tensor, nn.Parameter) == isinstance(real, nn.Parameter)
        else:
            assert nn.parameter.is_lazy(tensor)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_casts_layouts_lazy_modules_and_copies() -> None:
    with fake_mode():
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LazyConv2d(5, 3), nn.LSTM(3, 4))
        x = torch.rand(2, 3, 9, 9)
    assert is_fake(net[1].weight)
    net[1](net[0](x))
    assert net[1].weight.shape == (5, 4, 3, 3)
    net.half()
    assert all(p.dtype == torch.float16 and is_fake(p) for p in net.parameters())
    net[0].to(memory_format=torch.channels_last)
    assert net[0].weight.stride() == (27, 1, 9, 3)
    twin = copy.deepcopy(net)
    assert is_fake(twin[0].weight)
    assert twin[0].weight is not net[0].weight
    assert net.double()[2].weight_hh_l0.dtype == torch.float64


def test_fakes_outlive_the_mode_and_keep_their_rules() -> None:
    with fake_mode(fake_cuda=True):
        a, b = torch.rand(4, 5), torch.rand(5, 3, device="cuda")
    c = a @ a.t()
    assert is_fake(c)
    assert c.shape == (4, 4)
    view = a[1:3]
    view.add_(1)
    assert view.stride() == (5, 1)
    assert (a.to(torch.float64) + 1).dtype == torch.float64
    assert not is_fake(torch.ones(2))
    with pytest.raises(RuntimeError, match="same device"):
        a @ b
    a.t_()
    assert a.shape == (5, 4)
    a.requires_grad_()
    assert (a * 2).sum().grad_fn is not None


def test_indexing_on_a_device_that_is_not_there() -> None:
    real = torch.rand(4, 5, 6)
    with fake_mode(fake_cuda=True):
        t = torch.rand(4, 5, 6, device="cuda")
        rows = torch.tensor([0, 2], device="cuda")
    for index in (1, -1, slice(1, 3), (slice(None), 2), (..., 3), (None, 1, ..., slice(0, 6, 2)), (0, 1, 2)):
        assert t[index].shape == real[index].shape  # type: ignore[index]
    assert t[:, rows].shape == (4, 2, 6)
    t[1] = 0
    t[..., 2] = t[..., 3]
    assert t.shape == real.shape


def test_real_tensors_in_the_mode_stay_real() -> None:
    real = torch.ones(3)
    with fake_mode():
        assert not is_fake(real + 1)
        assert is_fake(real + torch.ones(3))
        with pytest.raises(FakeTensorError, match="real tensor"):
            real.add_(torch.ones(3))
    assert torch.equal(real, torch.ones(3))


def test_modes_nest() -> None:
    with fake_mode(fake_cuda=True):
        with fake_mode():
            assert is_fake(torch.ones(2, device="cuda"))
        assert is_fake(torch.ones(2))


def test_meta_like() -> None:
    with fake_mode():
        t = torch.rand(3, 4).t()
    meta = meta_like(t)
    assert meta.device.type == "meta"
    assert (meta.shape, meta.stride(), meta.dtype) == (t.shape, t.stride(), t.dtype)
    with pytest.raises(ValueError, match="expected to be a fake tensor"):
        meta_like(torch.ones(2))


@pytest.mark.parametrize(
    "use",
    [
        pickle.dumps,
        lambda t: t.item(),
        lambda t: t.tolist(),
        lambda t: t.numpy(),
        lambda t: t.untyped_storage(),
        lambda t: torch.nonzero(t),
        lambda t: bool(t),
    ],
)
def test_what_needs_data_is_refused(use: object) -> None:
    with fake_mode():
        t = torch.ones(1)
    with pytest.raises(FakeTensorError, match=r"no data|no storage|has none"):
        use(t)  # type: ignore[operator]


def test_an_error_names_the_module_and_the_operator() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n = int(torch.ones(1).sum().item())

    with (
        pytest.raises(FakeTensorError, match=r"aten\._local_scalar_dense\.default, called in .*Net\.__init__"),
        fake_mode(),
    ):
        Net()


def test_modules_and_tensors_move_to_a_pretended_device() -> None:
    with fake_mode(fake_cuda=True):
        assert torch.ones(3).cuda().device == torch.device("cuda:0")
        assert torch.ones(3).cuda(1).device == torch.device("cuda:1")
        assert torch.ones(3).to("cuda", torch.float64).cpu().device.type == "cpu"
        assert torch.ones(3).to(device="cuda").device == torch.device("cuda:0")
        assert torch.nn.Linear(3, 3).cuda().weight.device == torch.device("cuda:0")
        moved = torch.nn.Linear(3, 3).to("cuda")
        with torch.no_grad():
            assert moved(torch.ones(2, 3, device="cuda")).shape == (2, 3)
        assert moved.weight.requires_grad
        assert moved.weight.detach().mul(2).device == torch.device("cuda:0")


def _use_a_leaf() -> object:
    return torch.ones(3, device="cuda", requires_grad=True) * 2


def _move_a_leaf() -> object:
    return torch.ones(3, requires_grad=True).to("cuda")


def _call_a_layer() -> object:
    return torch.nn.Linear(3, 3, device="cuda")(torch.ones(2, 3, device="cuda"))


def _call_a_moved_model() -> object:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)).cuda()
    return model(torch.ones(2, 1, 8, 8, device="cuda"))


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="autograd finds the streams it asks for")
@pytest.mark.parametrize("use", [_use_a_leaf, _move_a_leaf, _call_a_layer, _call_a_moved_model])
def test_recording_on_a_pretended_device_is_an_error_where_torch_would_abort(use: Callable[[], object]) -> None:
    with fake_mode(fake_cuda=True), pytest.raises(FakeTensorError, match="built without CUDA") as caught:
        use()
    assert "fix: call it under torch.no_grad()" in str(caught.value)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_modes_of_several_threads_leave_torch_as_it_was() -> None:
    """The first to enter leaves first; a thread outside any mode makes ordinary parameters all the while."""
    entered, left = threading.Barrier(3), threading.Event()

    def first() -> None:
        with fake_mode():
            entered.wait()
        left.set()

    def second() -> None:
        with fake_mode():
            entered.wait()
            left.wait()

    before = nn.Parameter.__new__
    threads = [threading.Thread(target=body) for body in (first, second)]
    for thread in threads:
        thread.start()
    assert not is_fake(nn.LazyLinear(2).weight)
    entered.wait()
    for thread in threads:
        thread.join()
    assert not is_fake(nn.LazyLinear(2).weight)
    assert nn.Parameter.__new__ is before


def test_loading_a_file_gives_fakes() -> None:
    file = io.BytesIO()
    torch.save({"weight": torch.ones(4, 3)[1:]}, file)
    file.seek(0)
    with fake_mode():
        weight = torch.load(file)["weight"]
    assert is_fake(weight)
    assert (weight.shape, weight.storage_offset()) == ((3, 3), 3)


def _statistics(dtype: torch.dtype, weights: torch.dtype) -> list[Tensor]:
    x, one, five = torch.ones(4, 3, 5, dtype=dtype), torch.ones(3, dtype=weights), torch.ones(5, dtype=weights)
    found = [torch.native_layer_norm(x, [5], five, five, 1e-5)]
    for training in (False, True):
        found.append(torch.native_batch_norm(x, one, one, one.clone(), one.clone(), training, 0.1, 1e-5))
        found.append(torch._native_batch_norm_legit(x, one, one, one.clone(), one.clone(), training, 0.1, 1e-5))
    return [tensor for each in found for tensor in each]


@pytest.mark.parametrize(
    "call",
    [
        *(
            partial(_statistics, *dtypes)
            for dtypes in itertools.combinations_with_replacement((torch.bfloat16, torch.float32), 2)
        ),
        lambda: list(torch.linalg.svd(torch.ones(2, 5, 3))),
        lambda: list(torch.linalg.eig(torch.ones(2, 3, 3))),
        lambda: [torch.fft.rfft2(torch.ones(4, 3, 5)), torch.fft.hfft2(torch.ones(3, 5, dtype=torch.complex64))],
        lambda: [torch.nonzero_static(torch.ones(3, 2), size=4)],
        lambda: list(torch.svd_lowrank(torch.ones(6, 5), 2)),
        lambda: [torch.nn.functional.rrelu(torch.ones(2, 3), training=True, inplace=True)],
    ],
)
def test_geometry_is_that_of_the_cpu(call: Callable[[], list[Tensor]]) -> None:
    with fake_mode():
        fakes = call()
    for fake, real in zip(fakes, call(), strict=True):
        assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())
