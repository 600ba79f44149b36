"""Parameters where DistDL keeps them: only on the first of the workers that use a block.

    owner     holds the parameter: `parameters()`, the optimiser and `state_dict()` see it there
    others    hold a zero-volume buffer under its name, and a hidden replica of the owner's values

Before each call the workers agree, in one message of a few numbers, whether the owner's values have changed. A checksum
decides, since writes through `.data` do not change the version. Only changed values are sent. The call itself is
Gridwise's, with the replicas in place; the gradient is summed over all workers that share the block, so the owner's is
complete.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from gridwise.comm.agreement import Vote, key_of
from gridwise.errors import MismatchError
from gridwise.nn.engine.layer import GeneratorsDiffer, Layer, generators_for
from gridwise.nn.parameters.blocks import BlockParameter
from gridwise.nn.parameters.replicas import checksum
from gridwise.partition import zero_volume_tensor

from .module import Module


@contextmanager
def own_generators(layer: Layer) -> Iterator[None]:
    """Construct `layer` in the body, with generators that may differ between the workers, as in DistDL.

    Only the generators of the first worker, from which the initial values are drawn, then end in another state.
    """
    generators = generators_for(None)
    before = [generator.get_state() for generator in generators]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    differ = [each for each in caught if issubclass(each.category, GeneratorsDiffer)]
    for each in caught:
        if each not in differ:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    assert layer._transport is not None
    if differ and layer._transport.rank != layer._team[0]:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def placeholder_for(value: Tensor) -> Tensor:
    """What a worker shows instead of a parameter that another one owns: without volume, and so is its gradient."""
    shown = zero_volume_tensor(dtype=value.dtype, device=value.device, requires_grad=True)
    shown.grad = shown.detach().clone()
    return shown


class RootParameters(Module, Layer):
    """A mixin placed before a Gridwise layer; the constructor calls `_hide` once the parameters exist."""

    NAMES: ClassVar[dict[str, str]] = {}
    """The names of parameters that differ in DistDL, by torch's."""

    def _hide(self) -> None:
        """Hide the parameters that this worker does not own."""
        self.__dict__.update(_replica_of={}, _sent={})
        for name, value in list(self._parameters.items()):
            if value is not None and name in self._shardings and not self._owns(name):
                self.__dict__["_replica_of"][name] = self._parameters.pop(name)
                self._buffers[name] = placeholder_for(value)

    def _owns(self, name: str) -> bool:
        assert self._transport is not None
        return self._transport.rank in self._shardings[name].layout.grid

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._take_from_owners()
        with self._replicas_in_place():
            return super().__call__(*args, **kwargs)

    @contextmanager
    def _replicas_in_place(self) -> Iterator[None]:
        """In the body, every worker that holds a block has it as a parameter, as Gridwise's layer expects."""
        replicas: dict[str, BlockParameter] = self.__dict__["_replica_of"]
        shown = {name: self._buffers.pop(name) for name in replicas}
        held = {**self._parameters, **replicas}
        self._parameters.clear()  # so that the order is the same on all workers, which compare it
        self._parameters.update({name: held[name] for name in (*self._shardings, *held) if name in held})
        try:
            yield
        finally:
            for name in replicas:
                replicas[name] = self._parameters.pop(name)  # type: ignore[assignment]
            self._buffers.update(shown)

    def _take_from_owners(self) -> None:
        """Update all replicas to the owners' values."""
        assert self._transport is not None
        transport, rank = self._transport, self._transport.rank
        for name, sharding in self._shardings.items():
            if name not in self._parameters and name not in self.__dict__["_replica_of"]:
                continue  # a buffer, or absent
            if rank not in sharding.holders or len(team := sharding.replicas(rank)) == 1:
                continue
            what = f"{name} of {self._title}"
            value = self._parameters.get(name) if self._owns(name) else self.__dict__["_replica_of"][name]
            if value is None:
                continue
            sent, owns, vote = self.__dict__["_sent"], self._owns(name), Vote()
            if not owns:
                value.grad = None  # only the owner needs the sum
            same, digest = (
                vote.equal(key_of(f"{what} {self._call_id.key}")),
                vote.largest(checksum(value) if owns else None),
            )
            lacks, wants = vote.any(not owns and name not in sent), vote.any(owns and value.requires_grad)
            vote.count(transport, team, what)
            if vote.read(same) is None:
                raise MismatchError(f"{what}: the workers call different layers, or the same ones in another order.")
            value.requires_grad_(bool(vote.read(wants)))
            if vote.read(digest) != sent.get(name) or vote.read(lacks):
                self._send(name, value, team)
                sent[name] = vote.read(digest)

    def _send(self, name: str, value: Tensor, team: tuple[int, ...]) -> None:
        assert self._transport is not None
        owner = next(rank for rank in team if rank in self._shardings[name].layout.grid)
        message = value.detach().contiguous()
        self._transport.copy_from(message, owner, team, f"{name} of {self._title}")
        if message.data_ptr() != value.data_ptr() and not self._owns(name):
            value.data.copy_(message)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        if "_replica_of" not in self.__dict__:
            return super()._apply(fn, recurse)
        with self._replicas_in_place():
            super()._apply(fn, recurse)
        for name, replica in self.__dict__["_replica_of"].items():
            self._buffers[name] = placeholder_for(replica)
        self.__dict__["_sent"].clear()
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        torch.nn.Module._save_to_state_dict(self, destination, prefix, keep_vars)
        for key in destination:
            if key.startswith(prefix) and isinstance(destination[key], BlockParameter):
                destination[key] = destination[key].detach().as_subclass(Tensor) if not keep_vars else destination[key]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load a state; a worker that does not own a parameter keeps its placeholder."""
        mine = dict(state_dict)
        for name, sharding in self._shardings.items():
            shown = self.NAMES.get(name, name)
            value = mine.get(prefix + shown)
            if not isinstance(value, Tensor):
                continue
            if name in self.__dict__["_replica_of"]:
                mine[prefix + shown] = self._buffers[shown]
            elif value.shape == sharding.shape != self._block_shapes[name]:
                assert self._transport is not None
                mine[prefix + shown] = sharding.cut(value, self._transport.rank)
        torch.nn.Module._load_from_state_dict(self, mine, prefix, *rest)
