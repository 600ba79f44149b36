"""EpochOutcomes of whole samples from a torch loader, cut into blocks: by the first worker, which sends them, or by all.

Every batch costs a small message. If every worker reads, it carries a hash of what was read, because loaders shuffle
and transform with the random numbers of their process: workers that have read different samples raise instead of
training on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import torch
import xxhash
from torch import Tensor

from ..comm.agreement import key_of
from ..errors import DataError, PartitionError
from ..grid import Layout, union_of
from ..nn.functional import scatter
from ..partition import CartesianPartition, Partition, PartitionLike, as_partitions, zero_volume_tensor
from .agreement import EpochOutcomes, together
from .order import Position

READS = ("every", "first")


class CutLoader:
    """The batches of a torch DataLoader, as blocks on a grid.

    Parameters
    ----------
    loader : an iterable of batches of whole samples, a tensor or a tuple of them: a torch DataLoader, for example. With
        ``reads="first"``, all workers but the first may pass None
    P_x : where a batch lies: a partition, or the shape of a grid of all workers; a tuple of them for batches of several
        tensors. On a partition without a grid, every worker has all of it
    reads : 'every' worker reads all of every batch and keeps its block: no data is sent. Or the 'first' worker of the
        partition reads, and sends the others their blocks
    seed : of torch's random numbers when an epoch begins: a DataLoader without a generator of its own draws its order
        from them

    Examples
    --------
    >>> whole = torch.utils.data.DataLoader(torch.arange(12.0).reshape(4, 3), batch_size=2)
    >>> [tuple(x.shape) for x in gridwise.data.CutLoader(whole, (1, 1))]
    [(2, 3), (2, 3)]
    """

    def __init__(
        self,
        loader: Iterable[Any] | None,
        P_x: PartitionLike | Sequence[PartitionLike],
        reads: str = "every",
        seed: int = 0,
    ) -> None:
        found = as_partitions(P_x, "CutLoader")
        self.partitions = [found] if isinstance(found, Partition) else found
        if reads not in READS:
            raise PartitionError(f"CutLoader: `reads` (={reads!r}) must be one of {READS}.")
        self.loader, self.reads, self.seed = loader, reads, int(seed)
        self.transport = self.partitions[0].transport
        self.team = union_of([P.geometry for P in self.partitions])
        self.root = self.partitions[0].ranks[0]
        self._position = Position()

    @property
    def epoch(self) -> int:
        return self._position.epoch

    def __iter__(self) -> Iterator[Any]:
        """One epoch, or the rest of it after `load_state_dict`: batches already handed out are read and dropped.

        It goes on after a batch whose error was caught, if the loader does.
        """
        return EpochOutcomes(self._epoch())

    def _epoch(self) -> Iterator[Any]:
        """The batches of an epoch, or the errors in their place."""
        position, skipped = self._position, self._position.begin()
        reader = self.reads == "every" or self.transport.rank == self.root
        batches = self._whole(skipped) if reader else iter(())
        while self.transport.rank in self.team:
            read = self._read_by_all if self.reads == "every" else self._read_by_first
            try:
                found = read(batches)
            except DataError as error:
                found = error
            if found is None:
                break
            position.done += 1
            yield found
        position.end()

    def state_dict(self) -> dict[str, Any]:
        """The position: how many batches of which epoch were handed out."""
        return self._position.state({"seed": self.seed})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position at the next `for`, on any grid, with the same batch size and order."""
        self._position.load(state, {"seed": self.seed}, "CutLoader")

    def _whole(self, skipped: int) -> Iterator[list[Tensor] | DataError]:
        """The whole batches of an epoch, as this worker reads them, or errors in their place, after the first `skipped`."""
        if self.loader is None:
            raise DataError(f"CutLoader: worker {self.transport.rank} reads, and has no `loader`.")
        set_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key_of(f"{self.seed} {self.epoch}"))
            batches = _read(iter(self.loader), len(self.partitions))
            first = list(islice(batches, 1))  # the order is drawn now
        yield from islice(chain(first, batches), skipped, None)

    def _read_by_all(self, batches: Iterator[list[Tensor] | DataError]) -> Any:
        def says(found: list[Tensor] | None) -> str:
            if found is None:
                return "the end of the epoch"
            return ", ".join(f"{tuple(x.shape)} {x.dtype} {_digest(x)}" for x in found)

        found = together(self.transport, self.team, "CutLoader", lambda: _next(batches), says)
        if found is None:
            return None
        return self._returned([self._own(x, P) for x, P in zip(found, self.partitions, strict=True)])

    def _own(self, x: Tensor, P: Partition) -> Tensor:
        if not P.active:
            return zero_volume_tensor(len(x), x.dtype)
        if not isinstance(P, CartesianPartition):
            return x
        return x[Layout.balanced(P.geometry, x.shape).block(P.transport.rank).slices].clone()

    def _read_by_first(self, batches: Iterator[list[Tensor] | DataError]) -> Any:
        is_root = self.transport.rank == self.root
        found = together(self.transport, self.team, "CutLoader", lambda: _next(batches) if is_root else None)
        own_kinds = [] if found is None else [[str(x.dtype).removeprefix("torch."), *x.shape] for x in found]
        header = json.dumps(own_kinds).encode() if is_root else b""
        parts = self.transport.gather_bytes(header, self.team, "CutLoader")
        kinds = json.loads(parts[self.team.index(self.root)])
        if not kinds:
            return None
        whole: list[Tensor | None] = [None] * len(kinds) if found is None else [*found]
        return self._returned([self._sent(*of) for of in zip(whole, kinds, self.partitions, strict=True)])

    def _sent(self, x: Tensor | None, kind: list[Any], P: Partition) -> Tensor:
        dtype = getattr(torch, kind[0])
        if isinstance(P, CartesianPartition):
            return scatter(x, P, self.root)
        buffer = torch.empty(kind[1:], dtype=dtype) if x is None else x.contiguous()
        self.transport.copy_from(buffer, self.root, self.team, "CutLoader")
        return buffer if P.active else zero_volume_tensor(kind[1], dtype)

    def _returned(self, blocks: list[Tensor]) -> Any:
        return blocks[0] if len(blocks) == 1 else tuple(blocks)


def _next(batches: Iterator[list[Tensor] | DataError]) -> list[Tensor] | None:
    """The next batch, None at the end."""
    try:
        found = next(batches, None)
    except DataError:
        raise
    except Exception as error:  # of the loader, as it begins
        raise _raised(error) from error
    if isinstance(found, DataError):
        raise found
    return found


def _read(batches: Iterator[Any], count: int) -> Iterator[list[Tensor] | DataError]:
    """The batches of the user's loader; any error in it becomes a `DataError` in the place of the batch."""
    while True:
        try:
            yield _tensors(next(batches), count)
        except StopIteration:
            return
        except DataError as error:
            yield error
        except Exception as error:
            yield _raised(error)


def _raised(error: Exception) -> DataError:
    found = DataError(f"the loader has raised {type(error).__name__}: {error}")
    found.__cause__ = error
    return found


def _tensors(batch: object, count: int) -> list[Tensor]:
    found = list(batch) if isinstance(batch, tuple | list) else [batch] if isinstance(batch, Tensor) else []
    if len(found) != count or not all(isinstance(x, Tensor) for x in found):
        raise DataError(
            f"CutLoader: a batch must be {count} tensor{'s' * (count > 1)}, as many as partitions were given, and is a "
            f"{type(batch).__name__}" + (f" of {[type(x).__name__ for x in found]}." if found else ".")
        )
    return [x.detach() for x in found]


def _digest(x: Tensor) -> int:
    """A hash of the values of a tensor."""
    return xxhash.xxh3_64_intdigest(x.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
