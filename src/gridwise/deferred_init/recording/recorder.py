"""Recording: the dispatcher whose fakes record the operators applied to them.

Every operator on these fakes arrives, below autograd, in `Recorder.run`, during `deferred_init` and afterwards: a cast
of the finished model is recorded like its construction. The operator runs on meta tensors, and a node with its
arguments is added to the tape; random operators get a mark. Where data is needed (`item()`, `tolist()`, a shape that
depends on values), the arguments are replayed at once and the operator runs for real.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from gridwise.deferred_init.random.streams import DrawCounter, generator_for
from gridwise.deferred_init.recording.marking import FILLS, OVERWRITES, mark_for
from gridwise.deferred_init.recording.replaying import replay
from gridwise.deferred_init.recording.tape import Cell, External, TapeNode, Value
from gridwise.errors import DeferredInitError
from gridwise.fake.dispatch import (
    SETS,
    FakeDispatcher,
    OperatorSchema,
    needs_data,
    operator,
    returned,
    to_meta,
    written_by,
)
from gridwise.fake.geometry import Geometry, geometry, storage_copy, with_geometry, without_data
from gridwise.fake.meta_device import pretended_device
from gridwise.fake.nested import Args, Kwargs, mapped, tensors_in
from gridwise.fake.tensor import FakeTensor, make_fake
from gridwise.torch_internals.modes import without_modes
from gridwise.torch_internals.operators import OpOverload
from gridwise.torch_internals.tensors import storage_key, version_of

aten = torch.ops.aten


class Recorder(FakeDispatcher):
    """Creates the fakes of `deferred_init` and records the operators on them."""

    pretends_devices = False

    def __init__(self) -> None:
        super().__init__()
        self.counter: DrawCounter | None = None  # set while `deferred_init` runs
        self._fakes_by_storage: dict[int, FakeTensor] = {}  # fakes of real storages, by address, while it runs

    def begin(self) -> DrawCounter:
        self.counter = DrawCounter()
        return self.counter

    def end(self) -> None:
        counter, self.counter = self.counter, None
        self._fakes_by_storage.clear()
        if counter is not None:
            counter.settle()

    def new(self, meta: Tensor, device: torch.device, func: OpOverload, args: Args, kwargs: Kwargs) -> FakeTensor:
        return self.new_cell(func, args, meta, device, {"dtype": meta.dtype, "device": device})

    def filled(self, fake: FakeTensor, func: OpOverload, args: Args, kwargs: Kwargs) -> None:
        value: Value = fake.value
        self.check_unmade(value.cell, func)
        node = TapeNode(func, (value, *args[1:]), {})
        if func in FILLS:
            node.mark = mark_for(node, args, kwargs, fake.meta, fake.device, self.counter)
        node.overwrites = not value.cell.resized and (value.is_whole or _fills_storage(fake.meta))
        value.cell.writes.append(node)

    def run(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        op = operator(func)
        if func in SETS:
            return self.set_storage(op, *args)
        if needs_data(func, op, args):
            return self.run_for_real(func, op, args, kwargs)
        self.check_arguments(op, args, kwargs)
        device = self.device_of(op, args, kwargs)
        sizes = _storage_sizes(op, args, kwargs) if op.reshapes or "out" in kwargs else []
        try:
            result = self.on_meta(func, op, args, kwargs, device)
        except NotImplementedError as error:  # no meta kernel
            if op.written:
                self.refuse(op, "writes in place and has no meta kernel in this torch, so it cannot be recorded", error)
            return self.run_for_real(func, op, args, kwargs)
        node_args, node_kwargs = mapped(record, args), mapped(record, kwargs)
        if op.has_device:
            node_kwargs = self.pinned(node_kwargs, args, result, device)
        node = TapeNode(func, node_args, node_kwargs)
        if op.random:
            if "generator" in node_kwargs:
                node.kwargs = {**node_kwargs, "generator": None}  # a replay starts a generator at the mark
            drawn = args[0].meta if func in FILLS else result
            node.mark = mark_for(node, args, kwargs, drawn, device, self.counter)
        for fake, nbytes in sizes:
            if fake.meta.untyped_storage().nbytes() != nbytes:
                fake.value.cell.resized = True
        if op.written:
            self.note_writes(func, op, args, kwargs, node)
            if op.returns_written:
                return returned(op, args, kwargs)
        return self.remember(result, device, args, kwargs, node)

    def run_real(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        if operator(func).random and self.counter is not None:
            self.counter.settle()
            if kwargs.get("generator") is not None:
                kwargs = {**kwargs, "generator": generator_for(kwargs["generator"], torch.device("cpu"))}
        return func(*args, **kwargs)

    def run_whole(self, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """The result of a function of torch, recorded as one operator, without gradients."""
        device = next(x for x in tensors_in(args, kwargs) if isinstance(x, FakeTensor)).given_device
        with without_modes(), pretended_device(device):
            result = function(*mapped(to_meta, args), **mapped(to_meta, kwargs))
        return self.remember(result, device, (), {}, TapeNode(function, mapped(record, args), mapped(record, kwargs)))

    def pinned(self, kwargs: Kwargs, args: Args, result: object, device: torch.device) -> Kwargs:
        """The arguments with current defaults made explicit, so that a replay does not depend on when it happens."""
        if isinstance(result, Tensor) and not (args and isinstance(args[0], Tensor)):
            return {**kwargs, "dtype": result.dtype, "device": device}
        return kwargs

    # -- the tape

    def remember(self, result: object, device: torch.device, args: Args, kwargs: Kwargs, node: TapeNode) -> Any:
        """Fakes for the results of an operator, each with its value on the tape."""
        if not isinstance(result, Tensor | list | tuple):
            return result
        cells: dict[int, Cell] = {
            storage_key(t.meta): t.value.cell for t in tensors_in(args, kwargs) if isinstance(t, FakeTensor)
        }

        def one(item: object) -> object:
            if not isinstance(item, Tensor):
                node.outputs.append(None)
                return item
            storage = storage_key(item)
            cell = cells.get(storage)
            if cell is None:
                cell = cells[storage] = Cell()
                cell.writes.append(node)
            return make_fake(self, item, device, node.output(cell, item))

        return mapped(one, result)

    def note_writes(self, func: OpOverload, op: OperatorSchema, args: Args, kwargs: Kwargs, node: TapeNode) -> None:
        for fake in tensors_in(written_by(op, args, kwargs)):
            assert isinstance(fake, FakeTensor)  # `on_meta` refuses real ones
            self.check_unmade(fake.value.cell, func)
            fake.value.cell.writes.append(node)
        if func in OVERWRITES and not args[0].value.cell.resized and _fills_storage(args[0].meta):
            node.overwrites = True

    # -- data

    def run_for_real(self, func: OpOverload, op: OperatorSchema, args: Args, kwargs: Kwargs) -> Any:
        self.check_arguments(op, args, kwargs)
        reals = iter(replay([t.value for t in tensors_in(args, kwargs) if isinstance(t, FakeTensor)]))
        real_args, real_kwargs = mapped(lambda x: next(reals) if isinstance(x, FakeTensor) else x, (args, kwargs))
        with torch.no_grad():
            result = self.run_real(func, real_args, real_kwargs)
        made = list(tensors_in(result))
        plain = all(x.layout == torch.strided for x in tensors_in(args, kwargs, result))
        if made and plain and _is_differentiated(op, args, kwargs):
            node = TapeNode(func, mapped(record, args), mapped(record, kwargs))  # a constant would have no gradient
            metas = mapped(lambda x: without_data(x) if isinstance(x, Tensor) else x, result)
            return self.remember(metas, made[0].device, (), {}, node)
        return mapped(lambda x: self.constant(x) if isinstance(x, Tensor) and x.layout == torch.strided else x, result)

    def constant(self, real: Tensor) -> FakeTensor:
        return self.new_cell(literal, (External.of(real),), without_data(real), real.device)

    def fake_on_shared_storage(self, real: Tensor) -> FakeTensor:
        known = self._fakes_by_storage.get(storage_key(real))
        if known is None:
            kept = External(real, version_of(real), None)
            known = self.new_cell(literal, (kept,), without_data(real), real.device)
            if self.counter is not None:
                self._fakes_by_storage[storage_key(real)] = known
        return known if geometry(known.meta) == geometry(real) else self.restride(known, geometry(real))

    def read(self, fake: FakeTensor, asked: str) -> Tensor:
        return replay([fake.value])[0].detach()

    # -- storages

    def new_cell(
        self, func: Callable[..., Any], args: Args, meta: Tensor, device: torch.device, kwargs: Kwargs | None = None
    ) -> FakeTensor:
        node = TapeNode(func, args, kwargs or {})
        cell = Cell()
        cell.writes.append(node)
        return make_fake(self, meta, device, node.output(cell, meta, is_whole=func is aten.empty.memory_format))

    def copy_storage(self, fake: FakeTensor) -> FakeTensor:
        return self.new_cell(storage_copy, (fake.value,), storage_copy(fake.meta), fake.given_device)

    def restride(self, whole: FakeTensor, target: Geometry) -> FakeTensor:
        meta = with_geometry(whole.meta, target)
        node = TapeNode(with_geometry, (whole.value, target), {})
        return make_fake(self, meta, whole.given_device, node.output(whole.value.cell, meta))

    def part_from_aliases(self, fake: FakeTensor) -> None:
        super().part_from_aliases(fake)
        fake.value = TapeNode(aten.alias.default, (fake.value,), {}).output(fake.value.cell, fake.meta)

    # -- errors

    def check_unmade(self, cell: Cell, func: OpOverload) -> None:
        if cell.made is not None:
            raise DeferredInitError(
                f"{func}{self.place()} would write to a deferred tensor whose storage is real already.",
                fix="materialise this view of it too, then write.",
            )

    def check_arguments(self, op: OperatorSchema, args: Args, kwargs: Kwargs) -> None:
        """Raise for what cannot be replayed: fakes of other dispatchers, and real tensors once construction is over."""
        for tensor in tensors_in(args, kwargs):
            if isinstance(tensor, FakeTensor):
                if tensor.dispatcher is not self:
                    raise DeferredInitError(
                        f"{op.name}{self.place()} got a fake tensor of size {tuple(tensor.shape)} that was not "
                        f"constructed in a deferred-init context.",
                        fix="make it inside the function that deferred_init runs.",
                    )
            elif self.counter is None and tensor.dim() > 0:  # `weight[0] = 1` fills with a 0-dim tensor
                raise DeferredInitError(
                    f"{op.name}{self.place()} got a deferred tensor together with a real one of size "
                    f"{tuple(tensor.shape)}: a deferred tensor has no data yet.",
                    fix="call gridwise.deferred_init.materialize_module (or materialize_tensor) first; "
                    "load_state_dict(state, assign=True) needs no values and may come before.",
                )
            elif tensor.is_inference():
                raise DeferredInitError(
                    f"{op.name}{self.place()} got an inference-mode tensor, whose changes cannot be tracked.",
                    fix="clone it outside torch.inference_mode().",
                )

    def refuse(self, op: OperatorSchema, why: str, cause: BaseException | None = None) -> NoReturn:
        raise DeferredInitError(
            f"deferred_init: {op.name}{self.place()} {why}.",
            fix="build this part outside deferred_init, or with operators that torch knows on the meta device.",
        ) from cause


RECORDER = Recorder()  # tapes are independent of it, so one recorder serves all


def record(arg: object) -> object:
    """An argument as it is recorded on the tape."""
    if isinstance(arg, FakeTensor):
        return arg.value
    return External.of(arg) if isinstance(arg, Tensor) else arg


def literal(tensor: Tensor) -> Tensor:
    """The operator recorded for a constant such as `torch.tensor([1.0])`: a copy of it."""
    return storage_copy(tensor)


def _storage_sizes(op: OperatorSchema, args: Args, kwargs: Kwargs) -> list[tuple[FakeTensor, int]]:
    """The fakes that an operator writes to, each with the bytes of its storage."""
    written = [fake for fake in tensors_in(written_by(op, args, kwargs)) if isinstance(fake, FakeTensor)]
    return [(fake, fake.meta.untyped_storage().nbytes()) for fake in written]


def _fills_storage(meta: Tensor) -> bool:
    dense = meta.is_contiguous() or _is_dense(meta.stride(), meta.shape)
    return dense and meta.nbytes == meta.untyped_storage().nbytes()


@cache
def _is_dense(stride: tuple[int, ...], shape: torch.Size) -> bool:
    expected = 1
    for step, size in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n != 1):
        if step != expected:
            return False
        expected *= size
    return True


def _is_differentiated(op: OperatorSchema, args: Args, kwargs: Kwargs) -> bool:
    """Whether autograd records the operator, so that its result is a function of arguments that become real later."""
    if op.random or op.written or not torch.is_grad_enabled():
        return False
    return any(x.requires_grad for x in tensors_in(args, kwargs) if isinstance(x, FakeTensor))
