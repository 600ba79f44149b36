"""The fake tensor: a tensor's geometry without its data.

A fake is a torch wrapper subclass with the size, strides, dtype and device that it pretends to have, plus a *meta*
tensor of the same geometry, on which the meta kernels run. Two fakes are views of one another when their meta tensors
share a storage. Each fake belongs to a *dispatcher* (see dispatch.py), which handles every operator on it.

Torch's own FakeTensor is not used: it cannot be swapped (casts of modules, channels_last), made lazily (Lazy modules)
or filled at random on a CUDA device that the machine does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from gridwise.errors import FakeTensorError
from gridwise.fake import indexing
from gridwise.fake.geometry import geometry
from gridwise.fake.nested import Args, Kwargs, tensors_in
from gridwise.torch_internals.modes import no_torch_function, without_torch_function
from gridwise.torch_internals.operators import OpOverload
from gridwise.torch_internals.tensors import storage_key, wrapper_of

if TYPE_CHECKING:
    from gridwise.fake.dispatch import FakeDispatcher

_native_data = torch.Tensor.data  # the C++ property


class FakeTensor(Tensor):
    """A tensor without data. Made by `fake_mode` and by `gridwise.deferred_init`, never by hand."""

    __torch_function__ = no_torch_function  # handled below autograd

    is_fake = True
    dispatcher: FakeDispatcher
    meta: Tensor
    given_device: torch.device  # as the user wrote it: `cuda` where `device` is `cuda:0`
    value: Any  # the dispatcher's data about it: a `Value` of the tape, or None
    parameter_class: type[Tensor]  # the subclass of nn.Parameter that it stands for
    became: Tensor  # the real tensor that replaced it, if its own object could not become real

    def __new__(cls, *args: Any, **kwargs: Any) -> FakeTensor:
        raise FakeTensorError(
            "Something makes a parameter again by calling its class, which a fake tensor cannot follow: accelerate's "
            "`init_empty_weights` does that to all parameters of modules that are made meanwhile.",
            fix="leave it out: a deferred or fake model takes no memory either.",
        )

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        first = next(x for x in tensors_in(args, kwargs) if isinstance(x, FakeTensor))
        return first.dispatcher.run(func, args, kwargs or {})

    # -- printing

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        parts = [f"size={tuple(self.shape)}"]
        if self.dtype != torch.get_default_dtype():
            parts.append(f"dtype={self.dtype}")
        if self.device.type != "cpu":
            parts.append(f"device={self.given_device}")
        if self.requires_grad:
            parts.append("requires_grad=True")
        heading = "Parameter containing:\n" if getattr(self, "_is_param", False) else ""
        return f"{heading}tensor(..., {', '.join(parts)}, fake=True)"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    # -- what torch does without the dispatcher

    def detach(self) -> Tensor:
        """Another fake of the same storage. Every `nn.Parameter(...)` calls this, so it skips the dispatcher."""
        return make_fake(self.dispatcher, self.meta, self.given_device, self.value)

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        if not isinstance(other, FakeTensor) or other.dispatcher is not self.dispatcher:
            raise FakeTensorError(
                f"`.data` of a fake tensor was set to a tensor of another kind ({type(other).__name__}).",
                fix="set it to a fake made in the same mode, or make the real tensor first.",
            )
        self.take_geometry(other)

    def take_geometry(self, other: FakeTensor) -> None:
        """Become a view of `other`'s storage with its geometry, as `self.data = other` does."""
        _native_data.__set__(self, other)  # type: ignore[attr-defined]
        self.meta, self.given_device, self.value = other.meta, other.given_device, other.value
        self.__class__ = type(other) if type(self) in (FakeTensor, UnguardedFake) else type(self)

    def tolist(self) -> Any:
        return self.dispatcher.read(self, "tolist()").tolist()

    def numpy(self, *, force: bool = False) -> np.ndarray:
        return _for_reading(self.dispatcher.read(self, "numpy()").numpy(force=force))

    def __array__(self, dtype: DTypeLike | None = None) -> np.ndarray:
        array = _for_reading(self.dispatcher.read(self, "__array__()").numpy())
        return array if dtype is None else array.astype(dtype, copy=False)

    def new(self, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        if len(args) == 1 and isinstance(args[0], list | tuple) and not isinstance(args[0], torch.Size):
            return self.new_tensor(args[0], **kwargs)
        return self.new_empty(args[0] if args and isinstance(args[0], torch.Size) else args, **kwargs)

    def __getitem__(self, index: Any) -> Tensor:
        return indexing.take(self, index) if self._has_no_driver() else super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if self._has_no_driver():
            indexing.put(self, index, value)
        else:
            super().__setitem__(index, value)

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """`Tensor.to`. Torch asks the driver which device `cuda` means; without a driver it means `cuda:0`."""
        if not torch.cuda.is_available():
            args = tuple(_indexed(arg) for arg in args)
            kwargs = {name: _indexed(value) if name == "device" else value for name, value in kwargs.items()}
            targets = [x for x in (*args[:1], kwargs.get("device")) if isinstance(x, torch.device) and x.type == "cuda"]
            if targets and self.requires_grad and torch.is_grad_enabled() and not torch.backends.cuda.is_built():
                raise _cannot_record("to")
        return super().to(*args, **kwargs)

    def cuda(self, device: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """`Tensor.cuda`, also without a driver."""
        if torch.cuda.is_available():
            return super().cuda(device, *args, **kwargs)
        target = torch.device("cuda", device or 0) if device is None or isinstance(device, int) else device
        return self.to(target, *args, **kwargs)

    def _has_no_driver(self) -> bool:
        return self.is_cuda and not torch.cuda.is_available()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol."
            )
        with torch.no_grad():
            copy = self._copy_for(memo)
        copy.requires_grad_(self.requires_grad)
        for name, attribute in self.__dict__.items():
            if name not in ("dispatcher", "meta", "given_device", "value"):
                copy.__dict__[name] = attribute
        memo[id(self)] = copy
        return copy

    def _copy_for(self, memo: dict[int, Any]) -> Tensor:
        if getattr(self, "_is_param", False):
            return self.detach().clone(memory_format=torch.preserve_format)
        # Deep-copying a plain tensor copies its storage, once for all views of it that are copied together.
        storage = storage_key(self.meta)
        if storage not in memo:
            memo[storage] = self.dispatcher.copy_storage(self)
        whole = memo[storage]
        return self.dispatcher.restride(whole, geometry(self.meta))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise FakeTensorError(
            f"A fake tensor of size {tuple(self.shape)} cannot be pickled or saved: it has no data.",
            fix="materialise it first (gridwise.deferred_init.materialize_module), or keep its shape and dtype.",
        )

    def as_subclass(self, cls: Any) -> Any:
        if isinstance(self, cls):
            return super().as_subclass(cls)
        raise FakeTensorError(
            f"A fake tensor cannot become a {cls.__name__}: what a subclass does with its data is not recorded.",
            fix="make it one after materialisation. Subclasses of torch.nn.Parameter work: construct them.",
        )

    def data_ptr(self) -> int:
        return 0  # like a meta tensor; torch.nn.LSTM compares pointers to see whether its weights share a storage

    def untyped_storage(self) -> NoReturn:
        self._no_storage("untyped_storage()")

    def storage(self) -> NoReturn:
        self._no_storage("storage()")

    def _typed_storage(self) -> NoReturn:
        self._no_storage("storage()")

    def _no_storage(self, asked: str) -> NoReturn:
        raise FakeTensorError(
            f"{asked} of a fake tensor of size {tuple(self.shape)}: there is no storage behind it.",
            fix="materialise the tensor first; `gridwise.fake.meta_like` gives a meta tensor of the same geometry.",
        )


class UnguardedFake(FakeTensor):
    """A fake on a pretended CUDA device, in a torch built without CUDA.

    When autograd records an operator it asks for the device's stream; without CUDA support that aborts the process,
    before any operator is dispatched. So nothing is recorded here: an operator that autograd would record raises.
    """

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with without_torch_function():
            if not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors_in(args, kwargs)):
                return func(*args, **kwargs)
            name = getattr(func, "__name__", "")
            if name not in ("backward", "grad"):
                with torch.no_grad():
                    result = func(*args, **kwargs)
                if not _would_be_recorded(func, name, result, args):
                    return result
        raise _cannot_record(name)


def _cannot_record(name: str) -> FakeTensorError:
    return FakeTensorError(
        f"`{name}` of a fake tensor that requires a gradient, on a pretended CUDA device: this torch was built "
        "without CUDA, and its autograd cannot record there.",
        fix="call it under torch.no_grad(), pretend with device='cpu', or use a torch that was built for CUDA.",
    )


def _would_be_recorded(func: Callable[..., Any], name: str, result: object, args: Args) -> bool:
    if name.startswith("__") and name.endswith("__") and name not in _RECORDED_METHODS:
        return False  # an attribute access or a Python protocol
    if name in ("detach", "requires_grad_") or name.endswith("_like") or name.startswith("new"):
        return False
    if name.endswith("_"):
        return getattr(func, "__module__", None) != "torch.nn.init"  # they run under no_grad
    made = [x for x in tensors_in(result) if isinstance(x, FakeTensor) and (x.is_floating_point() or x.is_complex())]
    return any(fake is not arg for fake in made for arg in args[:1])


_RECORDED_METHODS = frozenset(
    f"__{prefix}{name}__"
    for name in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "matmul", "getitem", "setitem")
    for prefix in ("", "r", "i")
) | {"__neg__", "__pos__", "__abs__"}


def make_fake(dispatcher: FakeDispatcher, meta: Tensor, device: torch.device, value: Any = None) -> FakeTensor:
    """A fake with the geometry of `meta` that reports `device` as its device."""
    kind = UnguardedFake if device.type == "cuda" and not torch.backends.cuda.is_built() else FakeTensor
    fake: FakeTensor = wrapper_of(kind, meta, device if device.type == "cpu" else _with_index(device))
    fake.dispatcher = dispatcher
    fake.meta = meta
    fake.given_device = device
    fake.value = value
    return fake


def _for_reading(array: np.ndarray) -> np.ndarray:
    """The array, made read-only: its values were computed just for this call, so writes to it would be lost."""
    array.flags.writeable = False
    return array


def _with_index(device: torch.device) -> torch.device:
    """`device` with an index: without one, torch asks the driver, which may not exist."""
    if device.index in range(256):  # it has an index
        return device
    index = torch.cuda.current_device() if device.type == "cuda" and torch.cuda.is_initialized() else 0
    return torch.device(device.type, index)


def _indexed(argument: object) -> object:
    """An argument of `Tensor.to`, with an index added if it is a CUDA device without one."""
    if isinstance(argument, str | torch.device) and (device := torch.device(argument)).type == "cuda":
        return _with_index(device)
    return argument


def is_fake(tensor: object) -> bool:
    """Whether `tensor` is a fake tensor.

    Parameters
    ----------
    tensor : anything

    Examples
    --------
    >>> gridwise.fake.is_fake(torch.ones(2))
    False
    """
    return hasattr(type(tensor), "is_fake")


def meta_like(fake: Tensor) -> Tensor:
    """A detached meta tensor with the size, strides and dtype of `fake`.

    Parameters
    ----------
    fake : a fake tensor

    Examples
    --------
    >>> with gridwise.fake.fake_mode():
    ...     x = torch.ones(3)
    >>> gridwise.fake.meta_like(x).device
    device(type='meta')
    """
    if not isinstance(fake, FakeTensor):
        raise ValueError("`fake` was expected to be a fake tensor.")
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="meta")
