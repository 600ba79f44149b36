"""The result of an operator on fake tensors: the meta kernel's geometry, on the device that eager mode would choose.

    explicit `device` argument  ->  device of the first tensor that is not a 0-dim CPU tensor  ->  cpu

A `FakeDispatcher` creates fakes and handles every operator on them. The plain one only computes geometry; its subclass in
`gridwise.deferred_init` also records the operators, and runs them for real when data is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from gridwise.errors import FakeTensorError
from gridwise.fake.geometry import META, Geometry, storage_copy, with_geometry, without_data
from gridwise.fake.meta_device import corrected, pretended_device
from gridwise.fake.nested import Args, Kwargs, mapped, tensors_in
from gridwise.fake.tensor import FakeTensor, make_fake
from gridwise.torch_internals.operators import OpOverload, schema_of

aten = torch.ops.aten

FILLS = (aten.uniform_.default, aten.normal_.default, aten.fill_.Scalar, aten.zero_.default)
CPU = torch.device("cpu")
SETS = (aten.set_.source_Storage, aten.set_.source_Storage_storage_offset, aten.set_.source_Tensor)
_NEEDS_DATA = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
# They update running mean and variance, though their schemas do not say so.
_UNDECLARED_WRITES = (
    aten.native_batch_norm.default,
    aten.cudnn_batch_norm.default,
    aten.miopen_batch_norm.default,
)


@dataclass(frozen=True, slots=True)
class OperatorSchema:
    """Facts from the schema and tags of an ATen operator, cached."""

    name: str
    written: tuple[int | str, ...]  # arguments it writes to: positions, or names if keyword-only
    returns_written: int  # of these arguments it returns so many, the first ones, and nothing else
    random: bool
    needs_data: bool
    has_device: bool
    reshapes: bool  # it changes the geometry of the argument it writes to


@cache
def operator(func: OpOverload) -> OperatorSchema:
    schema = schema_of(func)
    written: list[int | str] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(argument.name if argument.kwarg_only else position)
    if func in _UNDECLARED_WRITES:
        written = [3, 4]
    returned = [r.alias_info is not None and r.alias_info.is_write for r in schema.returns]
    return OperatorSchema(
        name=str(func),
        written=tuple(written),
        returns_written=len(returned) if all(returned) else 0,
        random=torch.Tag.nondeterministic_seeded in func.tags,
        needs_data=any(tag in func.tags for tag in _NEEDS_DATA),
        has_device=any(a.name == "device" for a in schema.arguments),
        reshapes=torch.Tag.inplace_view in func.tags
        or func.__name__.split(".")[0] in ("resize_", "resize_as_", "set_"),
    )


class FakeDispatcher:
    """Creates fakes and handles every operator on them."""

    pretends_devices = True  # fakes may be on devices that this machine does not have

    def __init__(self, fake_cuda: bool = False) -> None:
        self.fake_cuda = fake_cuda

    # -- operators

    def shortcuts(self) -> dict[OpOverload, Callable[[OpOverload, Args, Kwargs], Any]]:
        """Fast paths for the most frequent operators of constructors; each may return NotImplemented."""
        return {aten.empty.memory_format: self.empty} | dict.fromkeys(FILLS, self.fill)

    def empty(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        device = kwargs.get("device") or CPU
        if device.type == "meta" or kwargs.get("memory_format") is not None or kwargs.get("layout") is not None:
            return NotImplemented
        self.check_device(device)
        return self.new(torch.empty(args[0], dtype=kwargs.get("dtype"), device=META), device, func, args, kwargs)

    def new(self, meta: Tensor, device: torch.device, func: OpOverload, args: Args, kwargs: Kwargs) -> FakeTensor:
        return make_fake(self, meta, device)

    def fill(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        fake = args[0]
        if not isinstance(fake, FakeTensor) or fake.dispatcher is not self or not fake.meta.is_floating_point():
            return NotImplemented
        check_fill(func, args)
        self.filled(fake, func, args, kwargs)
        return fake

    def filled(self, fake: FakeTensor, func: OpOverload, args: Args, kwargs: Kwargs) -> None:
        """Called for each fill of a fake; the meta kernel is skipped, since a fill changes no geometry."""

    def run(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        """The result of an operator with at least one fake argument, or of a factory called in the mode."""
        op = operator(func)
        if func in SETS:
            return self.set_storage(op, *args)
        if needs_data(func, op, args):
            self.refuse(op, "needs the data of a fake tensor, and a fake has none")
        device = self.device_of(op, args, kwargs)
        try:
            result = self.on_meta(func, op, args, kwargs, device)
        except NotImplementedError as error:
            self.refuse(op, "has no meta kernel in this torch, so the shape of its result is unknown", error)
        if op.returns_written:
            return returned(op, args, kwargs)
        return self.wrap(result, device)

    def run_real(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        """The result of an operator whose tensors are all real."""
        return func(*args, **kwargs)

    def device_of(self, op: OperatorSchema, args: Args, kwargs: Kwargs) -> torch.device:
        """The device of the result; raises where eager mode would."""
        found: torch.device | None = None
        is_scalar = False
        if op.has_device:
            explicit = kwargs.get("device")
            if explicit is not None:
                self.check_device(explicit)
                if args and isinstance(args[0], FakeTensor) and args[0].device == explicit:
                    return args[0].given_device
                return explicit
            if not args or not isinstance(args[0], Tensor):
                return CPU
        for tensor in tensors_in(args, kwargs):
            device = tensor.given_device if isinstance(tensor, FakeTensor) else tensor.device
            if found is None or (found.type == "cpu" and is_scalar):
                found, is_scalar = device, tensor.dim() == 0
            elif device != found and tensor.dim() != 0 and _same(device) != _same(found) and "copy" not in op.name:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found at least two devices, "
                    f"{found} and {device}! ({op.name}{self.place()})"
                )
        return found or CPU

    def check_device(self, device: torch.device) -> None:
        if device.type == "cuda" and not self.fake_cuda and not torch.cuda.is_available():
            raise FakeTensorError(
                f"A fake tensor on `device` (={str(device)!r}) was asked for, and this machine has no CUDA.",
                fix="use fake_mode(fake_cuda=True) to pretend that it has.",
            )

    def on_meta(self, func: OpOverload, op: OperatorSchema, args: Args, kwargs: Kwargs, device: torch.device) -> Any:
        """The result of the meta kernel, which writes the geometry of what it reshapes into the fakes."""
        out = kwargs.get("out")  # torch resizes `out` to fit the result
        reshaped = args[0] if op.reshapes else out if isinstance(out, FakeTensor) else None
        if isinstance(reshaped, FakeTensor):
            self.part_from_aliases(reshaped)
        meta_args, meta_kwargs = mapped(to_meta, args), mapped(to_meta, kwargs)
        if op.has_device and (meta_kwargs.get("device") is not None or not args or not isinstance(args[0], Tensor)):
            meta_kwargs["device"] = META
        if meta_kwargs.get("pin_memory"):
            meta_kwargs["pin_memory"] = False
        if op.random and meta_kwargs.get("generator") is not None:
            meta_kwargs["generator"] = None
        for tensor in tensors_in(written_by(op, args, kwargs)):
            if not isinstance(tensor, FakeTensor):
                self.refuse(op, "would write fake values into a real tensor")
        try:
            with pretended_device(device):
                result = corrected(func, meta_args, func(*meta_args, **meta_kwargs), device)
        except RuntimeError as error:
            if "no fake impl registered" in str(error) or "data is not allocated yet" in str(error):  # custom operators
                raise NotImplementedError(str(error)) from error
            raise
        if isinstance(reshaped, FakeTensor):
            reshaped.take_geometry(make_fake(self, reshaped.meta, reshaped.given_device, reshaped.value))
        if isinstance(result, Tensor) and result.layout != torch.strided:
            raise NotImplementedError(f"a tensor of layout {result.layout} cannot be fake")
        return result

    def set_storage(self, op: OperatorSchema, fake: Tensor, source: Any, *geometry: Any) -> FakeTensor:
        """`fake.set_(source)`: make the fake a view of another storage, as `torch.load` does for its tensors."""
        if not isinstance(fake, FakeTensor):
            self.refuse(op, "would give a real tensor a storage without data")
        if not isinstance(source, FakeTensor):
            start = torch.empty(0, dtype=fake.dtype, device=source.device)
            source = self.fake_on_shared_storage(start.set_(source, *geometry))
        fake.take_geometry(source)
        return fake

    def wrap(self, result: object, device: torch.device) -> Any:
        return mapped(lambda item: make_fake(self, item, device) if isinstance(item, Tensor) else item, result)

    def part_from_aliases(self, fake: FakeTensor) -> None:
        """Give a fake its own meta tensor before its geometry changes; after `detach` two fakes share one."""
        fake.meta = fake.meta.detach()

    # -- calls that do not go through the dispatcher

    def read(self, fake: FakeTensor, asked: str) -> Tensor:
        """The real values of `fake`; a plain fake has none."""
        raise FakeTensorError(
            f"{asked} of a fake tensor of size {tuple(fake.shape)}{self.place()}: a fake has no data.",
            fix="use a real tensor here, or gridwise.deferred_init, which computes the values when they are read.",
        )

    def constant(self, real: Tensor) -> FakeTensor:
        """A fake of a literal such as `torch.tensor([1, 2])`."""
        return make_fake(self, without_data(real), real.device)

    def fake_on_shared_storage(self, real: Tensor) -> FakeTensor:
        """A fake of a real tensor whose storage other tensors may share."""
        return self.constant(real)

    def copy_storage(self, fake: FakeTensor) -> FakeTensor:
        """A fake of the same geometry on a copy of the whole storage behind `fake`."""
        return make_fake(self, storage_copy(fake.meta), fake.given_device)

    def restride(self, whole: FakeTensor, target: Geometry) -> FakeTensor:
        """Another view of `whole`'s storage."""
        return make_fake(self, with_geometry(whole.meta, target), whole.given_device)

    # -- errors

    def refuse(self, op: OperatorSchema, why: str, cause: BaseException | None = None) -> NoReturn:
        # Not a NotImplementedError: torch.nn.utils.parametrize would catch that and carry on.
        raise FakeTensorError(
            f"{op.name}{self.place()} {why}.", fix="keep this operator out of the mode, or give it real tensors only."
        ) from cause

    @staticmethod
    def place() -> str:
        """The innermost module method on the stack, for messages: `, called in Linear.reset_parameters,`."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module):
                return f", called in {type(owner).__qualname__}.{frame.f_code.co_name},"
            frame = frame.f_back
        return ""


PLAIN = FakeDispatcher()
PLAIN_CUDA = FakeDispatcher(fake_cuda=True)


def needs_data(func: OpOverload, op: OperatorSchema, args: Args) -> bool:
    """Whether the result or its shape depends on values. For `tensor[index]` only if an index is a mask."""
    if func is aten.index.Tensor:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return op.needs_data


def written_by(op: OperatorSchema, args: Args, kwargs: Kwargs) -> list[Any]:
    """The arguments that an operator writes to."""
    found = [(args[w] if w < len(args) else None) if isinstance(w, int) else kwargs.get(w) for w in op.written]
    return [argument for argument in found if argument is not None]


def returned(op: OperatorSchema, args: Args, kwargs: Kwargs) -> Any:
    """The return value of an operator that returns the arguments it wrote to."""
    written = written_by(op, args, kwargs)[: op.returns_written]
    return written[0] if len(written) == 1 else tuple(written)


def to_meta(arg: object) -> object:
    if isinstance(arg, FakeTensor):
        return arg.meta
    if isinstance(arg, Tensor):
        if arg.layout != torch.strided:
            raise NotImplementedError(f"a tensor of layout {arg.layout} cannot be fake")
        return torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device=META)
    return arg


def _same(device: torch.device) -> tuple[str, int]:
    return device.type, device.index or 0


def check_fill(func: OpOverload, args: Args) -> None:
    """Raise for the parameters that torch's kernels reject."""
    first, second = (*args[1:], *(0.0, 1.0)[len(args) - 1 :]) if len(args) < 3 else args[1:3]
    if func is aten.uniform_.default and not first <= second:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={first} > to={second}")
    if func is aten.normal_.default and not second >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {second}")
