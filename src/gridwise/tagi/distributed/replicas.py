"""Replicas of one network, trained together: the same initial parameters, and raw sums added before each step.

    forward     batch norm: sums over all workers' units                    `all_sum`
    backward    sums of a layer complete -> bucket; bucket full -> its sum over the workers starts, backward goes on
    at its end  the last bucket is sent; all sums are awaited and put back into their layers
    step        nothing to send: all workers have the same sums and make the same update of the same parameters

The workers add up the raw sums, before any product with the variances, so together they are equivalent to one worker
with all their samples. Small tensors are sent together in buckets of a few megabytes, large ones alone, in place and
without a copy. `DDPSequential` and `GridSequential` are built on this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from ...comm.agreement import all_same, gather_lines, key_of
from ...comm.messages.requests import Request
from ...comm.transports.base import Team, Transport
from ...errors import PartitionError
from ...nn.engine.agreement import agree_call
from ...torch_internals.autograd import flattened, unflattened
from ..inference.products import wide_type
from ..nn.base_layer import BaseLayer, ParametricLayer, setting_names
from ..nn.batch_norm import BatchNorm2d
from ..nn.data_struct import describe
from ..nn.sequential import Sequential

BUCKET = 4 << 20
"""Bytes of a bucket: large enough for full bandwidth, small enough that the first is sent early in backward."""

Made = TypeVar("Made")

Item = tuple[Tensor, Callable[[Tensor], None]]
"""A tensor to be summed, and a function that takes its sum."""


class Replicas:
    """The workers of `team`, each with a replica of `net`, which are trained as one network.

    Parameters
    ----------
    net
        The network; hooks are set on its layers. Parameters and running statistics become those of the first worker.
    transport, team
        The transport to the other workers, and who they are.
    name
        The name in error messages.
    scale
        A factor for the sums: 1, or one over the number of workers for their average.
    problem
        What is wrong on this worker, if anything: if so, all workers raise before anything is sent.
    """

    def __init__(
        self,
        net: Sequential,
        transport: Transport,
        team: Team,
        name: str,
        scale: float = 1.0,
        problem: str | None = None,
    ) -> None:
        self.net, self.transport, self.team, self.name, self.scale = net, transport, team, name, scale
        self.batch: int | None = None  # samples behind the sums, if known; None: counted over the workers
        self._key, self._calls, self._is_open = key_of(f"{name} #{transport.ordinal(name)}"), 0, False
        self._taken: list[ParametricLayer] = []
        self._bucket: list[Item] = []
        self._posted: list[tuple[Request, Tensor, list[Item]]] = []
        if any(p.is_meta for p in net.parameters()):
            problem = problem or "the parameters have no values yet; fix: materialize_module(net) before"
        self.agree("init", problem)
        _check_same_network(net, transport, team, name)
        _copy_from_first([*net.parameters(), *net.buffers()], transport, team, name)
        if len(team) > 1:
            self._set_hooks()

    def _set_hooks(self) -> None:
        for layer in self.net.parametric_layers():
            layer.on_sums = self._collect_sums
            if isinstance(layer, BatchNorm2d):
                layer.all_sum = self.all_sum
        self.net.replicas = self
        self.net.input_delta_z_buffer.shared = True

    def all_sum(self, x: Tensor) -> Tensor:
        """The sum of `x` over the workers."""
        return self.transport.all_sum(x, self.team, f"the batch statistics of {self.name}")

    def agree(self, verb: str, problem: str | None = None, changed: bool = False) -> bool:
        """Whether any worker's input changed; all raise if their calls differ or one of them has a problem."""
        self._calls += 1
        key = (self._key + key_of(f"{verb} {self._calls}")) >> 1
        return agree_call(self.transport, self.team, f"{self.name}.{verb}", key, changed, problem)

    def agreed(self, verb: str, make: Callable[[], Made]) -> Made:
        """The result of `make` on this worker; all workers raise if it fails on one of them."""
        problem = made = None
        try:
            made = make()
        except Exception as error:  # whatever it is, the other workers wait for this one
            problem = describe(error)
        if verb == "backward":
            self.begin(problem)
        else:
            self.agree(verb, problem)
        return made  # type: ignore[return-value]  # with a problem, all have raised

    # ---- the sums of a backward pass --------------------------------------------------------------------------------
    def begin(self, problem: str | None = None) -> None:
        """Start a backward pass, on all workers together."""
        self._taken, self._bucket, self._posted = [], [], []
        self.agree("backward", problem)
        self._is_open = True

    def _collect_sums(self, layer: ParametricLayer) -> None:
        if not self._is_open:
            self.begin()
        self._taken.append(layer)
        for name, pair in layer.sums.items():
            for place, value in enumerate(pair):
                item = (value, partial(self._store_sum, layer, name, place))
                if value.nbytes >= BUCKET and value.is_contiguous():
                    self._post(value, [item])
                else:
                    self._bucket.append(item)
        if sum(value.nbytes for value, _ in self._bucket) >= BUCKET:
            self._post_bucket()

    def finish(self) -> None:
        """Wait until every layer has the sums over all workers, and the number of samples behind them."""
        was_open, self._is_open = self._is_open, False
        if not was_open or not self._taken:
            return
        if self.batch is None:
            like = self._taken[0].mu_w
            counts = torch.tensor([layer.batch for layer in self._taken], device=like.device)
            self._bucket.append((counts.to(wide_type(like.dtype)), self._note_batches))
        else:
            self._note_batches(torch.full((len(self._taken),), self.batch, device="cpu"))
        if self._bucket:
            self._post_bucket()
        for pending, flat, items in self._posted:
            pending.wait()
            parts = unflattened(flat.view(-1), [value for value, _ in items])
            for (value, put), part in zip(items, parts, strict=True):
                put(part.to(value.dtype))
        self._posted = []

    def _post_bucket(self) -> None:
        items, self._bucket = self._bucket, []
        flat = flattened([value for value, _ in items])
        self._post(flat.float() if flat.itemsize < 4 else flat, items)

    def _post(self, flat: Tensor, items: list[Item]) -> None:
        what = f"the sums of {self._taken[-1].get_layer_info()} of {self.name}"
        self._posted.append((self.transport.post_sum(flat, self.team, what), flat, items))

    def _store_sum(self, layer: ParametricLayer, name: str, place: int, total: Tensor) -> None:
        if self.scale != 1.0:
            total.mul_(self.scale)
        first, second = layer.sums[name]
        layer.sums[name] = (total, second) if place == 0 else (first, total)

    def _note_batches(self, counts: Tensor) -> None:
        for layer, count in zip(self._taken, counts.tolist(), strict=True):
            layer.batch = round(count)


# ---- one network on all workers -------------------------------------------------------------------------------------
def _check_same_network(net: Sequential, transport: Transport, team: Team, name: str) -> None:
    text = " ".join(f"{key}: {tuple(t.shape)} {t.dtype}," for key, t in net.state_dict().items())
    layers = [
        f"{place}: {type(layer).__name__} {_settings_of(layer)}"
        for place, layer in net.named_modules(remove_duplicate=False)  # an activation may stand in several places
        if isinstance(layer, BaseLayer)
    ]
    if not all_same(transport, team, name, f"{text} {layers}"):
        reports = gather_lines(transport, team, net.get_layer_stack_info().strip().replace("\n", ", "))
        fix = "build the same layers, with the same settings, order and precision, on all workers."
        raise PartitionError(f"{name}: the workers have different networks.", reports, fix)


def _settings_of(layer: BaseLayer) -> dict[str, object]:
    return {name: vars(layer)[name] for name in setting_names(layer) if name != "training"}


def _copy_from_first(tensors: Sequence[Tensor], transport: Transport, team: Team, name: str) -> None:
    """Copy the first worker's values to all workers: large tensors in place, small ones together."""
    if len(team) == 1:
        return
    what = f"the initial parameters of {name}"
    small = []
    for tensor in tensors:
        if tensor.nbytes >= BUCKET and tensor.is_contiguous():
            transport.copy_from(tensor.detach(), team[0], team, what)
        else:
            small.append(tensor.detach())
    for dtype in dict.fromkeys(tensor.dtype for tensor in small):  # in the same order on all workers
        together = [tensor for tensor in small if tensor.dtype == dtype]
        flat = flattened(together)
        transport.copy_from(flat, team[0], team, what)
        torch._foreach_copy_(together, list(unflattened(flat, together)))
