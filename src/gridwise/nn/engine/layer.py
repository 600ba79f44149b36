"""The base of distributed layers with parameters: torch's own layer is built and cut into blocks; saving and loading.

    layer = torch.nn.Conv2d(...)            on every worker, from one agreed state of the random generator
    block = layer.weight[my block]          all that is kept

So names, initial values and global shapes are torch's, whatever the grid, and every worker's generator, even outside
the grid, advances as in a sequential program. `load_state_dict` takes the torch layer's state (global tensors, of which
each worker takes its block) as well as the worker's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar, cast

import torch
import xxhash
from torch import Tensor

from ...comm.transports.base import Team, Transport
from ...deferred_init import is_deferred, materialize_shard
from ...errors import GridwiseError, MismatchError, PartitionError, UnsupportedError
from ...partition import Partition
from ..parameters import saved_blocks
from ..parameters.blocks import BlockParameter, BlockTensor, Make, ReplicatedBlock, Sharding, holders_of_blocks
from ..parameters.gradient_buckets import replicated_together
from ..parameters.gradient_wire import current_wire
from ..parameters.replicas import Replica
from ..parameters.whole_tensor import refuse_dtensor
from .agreement import Vote, gather_lines, key_of
from .autocast import autocast_dtypes
from .mode import StateStructure, structure_of_state
from .module import Module
from .operator import CallId


class Layer(Module):
    """A distributed layer with parameters, buffers, or both, in blocks.

    A subclass names its partitions (`_takes_part`), then calls `_build`. In `forward` it asks for `_parameter(name)`.
    """

    _keeps_plans = True
    _fixed: ClassVar[tuple[str, ...]] = ("P_x", "P_y", "P_w")
    _required: ClassVar[tuple[str, ...]] = ()
    """Parameters that torch's layer cannot do without; the others may be set to None."""

    P_x: Partition

    def __init__(self) -> None:
        super().__init__()
        self._shardings: dict[str, Sharding] = {}
        self._block_shapes: dict[str, torch.Size] = {}
        self._replicated: dict[str, tuple[ReplicatedBlock, int]] = {}
        self._absent: frozenset[str] = frozenset()
        """Parameters and buffers of torch's layer that this one was constructed without."""

    def _build(
        self,
        make: Make,
        shardings: Callable[[torch.nn.Module], Mapping[str, Sharding]],
        device: torch.device | str | None = None,
        problem: str | None = None,
    ) -> torch.nn.Module:
        """Build torch's layer with `make` and keep this worker's blocks of its parameters and buffers.

        Returns the layer on the meta device, for its attributes. `problem` is an error that the caller has found: it,
        or torch's own, is raised on all workers of the layer.
        """
        template: torch.nn.Module | None = None
        if problem is None:
            try:
                template = make("meta")
            except (ValueError, TypeError, RuntimeError) as error:
                problem = str(error)
        assert self._transport is not None
        try:
            agree_build(self._transport, self._team, self._title, problem, device)
        except GridwiseError:
            self._transport.uncount(self._identity.counted_as)
            raise
        assert template is not None
        whole, where = make(device), shardings(template)
        for name, value in whole.named_parameters():
            self._hold(name, value.data, where[name], torch.nn.Parameter)
        for name, buffer in whole.named_buffers():
            self._hold(name, buffer, where[name], Tensor)
        for name in (name for name, value in template._parameters.items() if value is None):
            self.register_parameter(name, None)
        for name in (name for name, value in template._buffers.items() if value is None):
            self.register_buffer(name, None)
        self._absent = frozenset({*self._parameters, *self._buffers} - {*self._shardings})
        return template

    def _hold(self, name: str, value: Tensor, sharding: Sharding, kind: type[Tensor]) -> None:
        """Keep this worker's block of a global value, as a parameter or as a buffer."""
        assert self._transport is not None
        transport, block = self._transport, sharding.cut(value, self._transport.rank).clone()
        self._shardings[name], self._block_shapes[name] = sharding, block.shape
        holders_of_blocks[self] = transport
        if kind is torch.nn.Parameter:
            self.register_parameter(name, BlockParameter(block, value.dtype.is_floating_point or value.is_complex()))
        else:
            self.register_buffer(name, block)
        self._label()
        if transport.rank in sharding.holders and len(replicas := sharding.replicas(transport.rank)) > 1:
            title = f"{name} of {self._title}"
            key = key_of(f"{self._call_id.key} {name}")
            self._replicated[name] = (ReplicatedBlock(transport, replicas, title), key)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """As in torch, which also calls it on assignment: a new value must have the shape of the block."""
        if name in self._shardings:
            refuse_dtensor(name, param, self._shardings[name].layout)
        if param is not None and (problem := self._problem_with_shape(name, param)):
            raise PartitionError(f"{self._title}: {problem}")
        super().register_parameter(name, param)

    def _problem_with_state(self, input: tuple) -> str | None:
        held: dict[str, Tensor | None] = {**self._parameters, **self._buffers}
        x = next((x for x in input if isinstance(x, Tensor)), None) if self._brings_blocks else None
        for name in self._shardings:
            value = held.get(name)
            if value is None:
                if name in held and name in self._required:
                    return f"`{name}` is None"
            elif problem := self._problem_with_shape(name, value):
                return problem
            elif x is not None and value.device != x.device:
                return f"got a tensor on {x.device} while `{name}` is on {value.device}"
        given = next((name for name in self._absent if held.get(name) is not None), None)
        if given is not None:
            return f"has a `{given}` that it was constructed without\n  fix: construct it with one, and load that"
        return None

    def _refuse_state(self) -> None:
        for name, sharding in self._shardings.items():
            if sharding.layout.grid.size > 1 and name not in self._parameters and name not in self._buffers:
                raise UnsupportedError(
                    f"{self._title}: `{name}` is cut over the workers, and something computes it from its block alone (a "
                    "parametrization, spectral or weight norm, pruning).\n  fix: apply that to layers whose parameters are "
                    "whole."
                )

    @property
    def _brings_blocks(self) -> bool:
        """Whether this worker holds a part of the input; others may pass a tensor of any kind."""
        return bool(self.P_x.active)

    def _problem_with_shape(self, name: str, value: Tensor) -> str | None:
        wanted = self._block_shapes.get(name, value.shape)
        if value.shape == wanted:
            return None
        return (
            f"`{name}` has shape {tuple(value.shape)}, where this worker holds a block of shape {tuple(wanted)}\n"
            "  fix: load_state_dict() takes the global tensor, and each worker its block of it"
        )

    def __deepcopy__(self, memo: dict) -> Layer:
        twin: Any = super().__deepcopy__(memo)
        if twin._transport is not None:
            holders_of_blocks[twin] = twin._transport
        twin._replicated = {
            n: (replicated, key_of(f"{twin._call_id.key} {n}")) for n, (replicated, _) in twin._replicated.items()
        }
        return cast(Layer, twin)

    def _weight_and_bias(self) -> tuple[Any, Tensor | None]:
        """Both as by `_parameter`; their gradients are summed in one message where the same workers share them."""
        held, weight, bias = self._replicated, self._parameters.get("weight"), self._parameters.get("bias")
        together = "weight" in held and "bias" in held and torch.is_grad_enabled()
        if not together or weight is None or bias is None:  # maybe computed, by a parametrization
            return self._parameter("weight"), self._parameter("bias")
        (operator, key), (other, _) = held["weight"], held["bias"]
        alike = weight.requires_grad and bias.requires_grad and weight.dtype == bias.dtype
        if not alike or operator.team != other.team:
            return self._parameter("weight"), self._parameter("bias")
        both = replicated_together((weight, bias), operator, CallId(key, self._call_id.call))
        return both[0], both[1]

    def _raw_weight_and_bias(self) -> tuple[Any, Tensor | None, list[tuple[ReplicatedBlock, int] | None]]:
        """Both as they are, and how the caller has to sum their gradients."""
        sums = [self._replicated.get(name) for name in ("weight", "bias")]
        if current_wire() is not None:
            sums = [None if each is None else (each[0].with_current_wire(), each[1]) for each in sums]
        return self._block("weight"), self._block("bias"), sums

    def _block(self, name: str) -> Tensor | None:
        """A parameter as it is, or as a parametrization computes it; None without one."""
        held = self._parameters
        return held[name] if name in held else getattr(self, name)

    def _parameter(self, name: str) -> Any:
        """A parameter for use in `forward`, or None: backward sums its gradient over its replicas."""
        value = self._block(name)
        if value is None or name not in self._replicated or not (value.requires_grad and torch.is_grad_enabled()):
            return value
        operator, key = self._replicated[name]
        return replicated_together((value,), operator, CallId(key, self._call_id.call))[0]

    @property
    def _wants_gradients(self) -> bool:
        """Whether a parameter needs a gradient from this call."""
        return torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters(recurse=False))

    def _mode(self) -> Hashable:
        settings = None if self._read_settings is None else self._read_settings(self)
        return self.training, current_wire(), tuple(autocast_dtypes().items()), settings

    def _state_structure(self) -> StateStructure:
        names, looks = structure_of_state(self)
        for name, part in self._modules.items():  # parametrizations
            for own, module in part.named_modules(prefix=name) if part is not None else ():
                inner, more = structure_of_state(module)
                names, looks = (*names, *(f"{own}.{each}" for each in inner)), looks + more
        return names, looks

    def _replicas(self) -> list[Replica]:
        held: dict[str, Tensor | None] = {**self._parameters, **self._buffers}
        found = [Replica(n, v, self._shardings[n]) for n in self._shardings if (v := held.get(n)) is not None]
        if lost := [sharding for name, sharding in self._shardings.items() if name not in held]:
            grid = lost[0].holders  # computed from other tensors here, which are whole (`_refuse_state`)
            others = {**dict(self.named_parameters()), **dict(self.named_buffers())}
            more = [(name, value) for name, value in others.items() if name not in self._shardings]
            found += [Replica(n, v, Sharding(grid, (None,) * v.dim(), tuple(v.shape))) for n, v in more]
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self._parameters or name in self._buffers:
            self.__dict__["_replicas_are_new"] = True

    def _try_dtypes(self, call: Callable[[Callable[..., Any]], Tensor]) -> None:
        """Raise torch's error, if any, for these dtypes of input and parameters, also on workers without outputs.

        `call` gets a function that makes a small tensor ``(*shape)`` like another one, and None from None.
        """

        def one(like: Tensor | None, *shape: int) -> Tensor | None:
            return None if like is None else torch.ones(shape, dtype=like.dtype, device=like.device)

        try:
            with torch.no_grad():
                call(one)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise PartitionError(f"{self._title}: {error}") from None

    # Conversion, saving and loading

    def _label(self) -> None:
        """Label all blocks again, after something may have replaced them."""
        assert self._transport is not None
        for name, sharding in self._shardings.items():
            value: Any = self._parameters.get(name, self._buffers.get(name))
            if value is None:  # set to None, or computed
                continue
            if name in self._parameters:
                if not isinstance(value, BlockParameter):
                    value = self._parameters[name] = BlockParameter(value.data, value.requires_grad)
            elif not isinstance(value, BlockTensor):
                value = self._buffers[name] = value.as_subclass(BlockTensor)
            sharding.label(value, self._transport)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Layer:
        super()._apply(fn, recurse)
        self._label()
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        assert self._transport is not None
        for name, sharding in self._shardings.items():
            value = destination.get(prefix + name)
            if value is not None and not isinstance(value, BlockParameter | BlockTensor):
                value = destination[prefix + name] = value.as_subclass(BlockTensor)
                sharding.label(value, self._transport)
        saved_blocks.note(destination, prefix, self._shardings, self._transport.rank)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, *rest: Any
    ) -> None:
        assert self._transport is not None
        mine, rank = dict(state_dict), self._transport.rank
        saved = local_metadata.get(saved_blocks.KEY, {})
        for name, sharding in self._shardings.items():
            value = mine.get(prefix + name)
            if not isinstance(value, Tensor):
                continue
            if is_deferred(value):
                mine[prefix + name] = _block_of_deferred(value, sharding, rank)
                continue
            saved_blocks.check(prefix + name, value, saved.get(name), sharding, rank)
            if value.shape == sharding.shape != self._block_shapes[name]:
                mine[prefix + name] = sharding.cut(value, rank)
        super()._load_from_state_dict(mine, prefix, local_metadata, strict, *rest)
        self._label()
        self.__dict__["_replicas_are_new"] = True


def _block_of_deferred(value: Tensor, sharding: Sharding, rank: int) -> Tensor:
    """This worker's block of a deferred tensor, made without the rest of it; bit for bit that of the whole."""
    box = sharding.block(rank)
    slices = box.slices if box is not None else (slice(0, 0),) * min(value.dim(), 1)
    return materialize_shard(value, slices).detach()


class GeneratorsDiffer(UserWarning):
    """The workers of a layer construct it with random generators in different states."""


def agree_build(
    transport: Transport, team: Team, title: str, problem: str | None, device: torch.device | str | None = None
) -> None:
    """Agree that all workers of a layer build it, from one state of the random generators: that of the first worker.

    If generators differ, all are set to that state, and all workers warn. A problem of any worker is raised on all.
    """
    if transport.rank not in team or len(team) == 1:
        if problem is not None:
            raise PartitionError(f"{title}: {problem}")
        return
    generators = generators_for(device)
    states = [generator.get_state() for generator in generators]
    key, drawn = key_of(title), xxhash.xxh3_64_intdigest(torch.cat(states).numpy().tobytes()) >> 2
    vote = Vote()
    same_layer, same_state, fails = vote.equal(key), vote.equal(drawn), vote.any(problem is not None)
    what = f"the construction of {title}"
    vote.count(transport, team, what)
    if vote.read(same_layer) is None:
        raise MismatchError(
            "the workers construct different layers, or the same ones in another order.",
            gather_lines(transport, team, f"constructs {title}"),
            "construct the same layers with the same arguments in the same order on all workers.",
        )
    if vote.read(fails):
        raise PartitionError(f"{title} cannot be constructed.", gather_lines(transport, team, problem))
    if vote.read(same_state) is None:
        for generator, state in zip(generators, states, strict=True):
            transport.copy_from(state, team[0], team, what)
            generator.set_state(state)
        warnings.warn(
            f"{title}: the random generators of workers {team} differ. Initial values are drawn from the state of "
            f"worker {team[0]}, which all of them have now. Call torch.manual_seed with one seed on all workers.",
            GeneratorsDiffer,
            stacklevel=4,
        )


def generators_for(device: torch.device | str | None) -> list[torch.Generator]:
    """The generators that a layer's initial values on `device` may be drawn from."""
    place = torch.get_default_device() if device is None else torch.device(device)
    if place.type != "cuda":
        return [torch.default_generator]
    index = torch.cuda.current_device() if place.index is None else place.index
    return [torch.default_generator, torch.cuda.default_generators[index]]
