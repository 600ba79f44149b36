"""Marks of random operators: where in its generator's stream each one starts; the generator is moved past it.

If the number of draws is known (`random/draws.py`), the counter only adds it up. Every other operator, and every one on
CUDA, takes the slow way that is always right: it runs once, only to advance its generator, and its result is discarded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gridwise.deferred_init.random.draws import Kind
from gridwise.deferred_init.random.streams import DEFAULT, GENERATOR_LOCK, DrawCounter, Mark, Stream, generator_for
from gridwise.deferred_init.recording.replaying import replay, replaying, run_at
from gridwise.deferred_init.recording.tape import TapeNode
from gridwise.fake.nested import Args, Kwargs, mapped, tensors_in
from gridwise.fake.tensor import FakeTensor

aten = torch.ops.aten

FILLS: dict[Any, Kind] = {
    aten.uniform_.default: "uniform",
    aten.normal_.default: "normal",
}
FACTORIES: dict[Any, Kind] = {
    aten.rand.default: "uniform",
    aten.rand.generator: "uniform",
    aten.randn.default: "normal",
    aten.randn.generator: "normal",
    aten.rand_like.default: "uniform",
    aten.randn_like.default: "normal",
    aten.randperm.default: "permutation",
    aten.randperm.generator: "permutation",
}
OVERWRITES = {
    *FILLS,
    aten.fill_.Scalar,
    aten.fill_.Tensor,
    aten.zero_.default,
    aten.copy_.default,
    aten.random_.default,
    aten.random_.to,
    getattr(aten.random_, "from"),
    aten.bernoulli_.float,
    aten.exponential_.default,
    aten.geometric_.default,
    aten.cauchy_.default,
    aten.log_normal_.default,
}  # operators that do not read the first argument's old contents


def mark_for(
    node: TapeNode, args: Args, kwargs: Kwargs, drawn: Tensor, device: torch.device, counter: DrawCounter | None
) -> Mark:
    """The mark of a random operator that creates or fills the meta tensor `drawn`."""
    source = generator_for(kwargs.get("generator"), device)
    kind = FILLS.get(node.func) or FACTORIES.get(node.func)
    lazily = counter if source is DEFAULT else None
    with GENERATOR_LOCK:
        if kind is not None and source.device.type == "cpu":
            counting = lazily or DrawCounter(source)
            mark = counting.count(kind, drawn.numel(), drawn.dtype, drawn.is_contiguous())
            if mark is not None:
                if lazily is None:
                    counting.settle()
                return mark
        if lazily is not None:
            lazily.settle()
        return _mark_by_drawing(node, args, kwargs, source, device)


def _mark_by_drawing(node: TapeNode, args: Args, kwargs: Kwargs, source: torch.Generator, device: torch.device) -> Mark:
    stream = Stream(source.get_state())
    on_cpu = source.device.type == "cpu"
    mark = Mark(stream, 0, stream.first_sample() if on_cpu else None, None, None if on_cpu else source.device)
    filled = args[0] if node.func in OVERWRITES else kwargs.get("out")  # only its geometry matters
    read = {id(t): t for t in tensors_in(args, kwargs) if isinstance(t, FakeTensor) and t is not filled}
    reals = dict(zip(read, replay([t.value for t in read.values()]), strict=True))

    def stand_in(item: object) -> object:
        if item is filled and isinstance(item, FakeTensor):
            return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device=device)
        return reals.get(id(item), item)

    given = mapped(stand_in, {name: item for name, item in kwargs.items() if name != "generator"})
    with replaying():
        after = run_at(mark, node.func, mapped(stand_in, args), given)[1]
    source.set_state(after)
    return mark
