"""EpochOutcomes of blocks, in the same order on all workers, read ahead, and resumable on another grid.

Drawing a batch sends no message. The next agreement of a model or layer, which takes place anyway, also compares which
batch each worker has drawn, and tells all of them if one could not read its part (`comm.supervision.drawn_batches`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..comm.agreement import key_of
from ..comm.supervision.drawn_batches import DrawnBatch
from ..errors import DataError, PartitionError
from ..nn.engine.agreement import is_on
from .agreement import EpochOutcomes, together
from .dataset import BlockDataset
from .order import Order, Position
from .prefetch import BatchSpan, Prefetch
from .reader import ReadRequest

SHOWN = 8
"""How many samples of a batch an error names."""


class BlockLoader:
    """An iterable over the batches of a `BlockDataset`; each worker gets its part of each batch.

    Parameters
    ----------
    dataset : what is read
    batch_size : samples of a batch, over all workers: the same on any grid
    shuffle : whether a new order is drawn for each epoch
    seed : of the order, and of random transforms
    drop_last : leave out the last batch if it has fewer samples. Otherwise it is returned as it is, and some workers
        along axis 0 of the grid may have no sample of it
    prefetch : how many batches are read ahead; 0 reads each when it is asked for
    readers : how many threads, or processes, read ahead
    processes : read ahead in processes of their own, to which samples and transforms are sent
    device : where batches go; None leaves them on the host
    agree : send an extra message for each batch, so that all workers raise the same error. For loops that call no model
        or layer

    Attributes
    ----------
    epoch : how many passes are complete
    samples : the numbers of the samples of the last batch, on all workers together

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1])
    >>> dataset = gridwise.data.BlockDataset(torch.arange(30.0).reshape(5, 1, 6), P_x)
    >>> loader = gridwise.data.BlockLoader(dataset, batch_size=2, shuffle=True, seed=1)
    >>> [tuple(x.shape) for x in loader]
    [(2, 1, 6), (2, 1, 6), (1, 1, 6)]
    >>> loader.state_dict()["epoch"]
    1
    """

    def __init__(
        self,
        dataset: BlockDataset,
        batch_size: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        prefetch: int = 2,
        readers: int = 1,
        processes: bool = False,
        device: torch.device | str | None = None,
        agree: bool = False,
    ) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("prefetch", prefetch, 0), ("readers", readers, 1)):
            if type(value) is not int or value < least:
                raise PartitionError(f"BlockLoader: `{name}` (={value!r}) must be a whole number, {least} or more.")
        self.dataset, self.batch_size, self.drop_last, self.agree = dataset, batch_size, drop_last, agree
        self.order = Order(len(dataset), bool(shuffle), int(seed))
        self.device = None if device is None else torch.device(device)
        self.samples: tuple[int, ...] = ()
        self._position = Position()
        number = dataset.transport.ordinal(f"BlockLoader of {dataset.team}")
        self._title = f"BlockLoader #{number}" if number else "BlockLoader"
        self._prefetch = Prefetch(dataset.reader, prefetch, readers, processes)
        self._end = weakref.finalize(self, Prefetch.close, self._prefetch)

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        whole, rest = divmod(self.order.length, self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    @property
    def epoch(self) -> int:
        return self._position.epoch

    def __iter__(self) -> Iterator[Any]:
        """One epoch, or the rest of it after `load_state_dict`; it goes on after a batch whose error was caught."""
        return EpochOutcomes(self._epoch())

    def _epoch(self) -> Iterator[Any]:
        """The batches of an epoch, or the errors in their place."""
        position, start = self._position, self._position.begin()
        epoch = position.epoch
        for request, about, found in self._prefetch.answers(self._requests(epoch, start)):
            yield from self._untold()
            position.epoch, position.done = epoch, about[1]
            self.samples = request.samples
            problem = found if isinstance(found, Exception) else None
            try:
                self._draw(_spelt(request, about), f"{epoch} {about} {request.samples}", problem)
            except DataError as error:
                yield error
                continue
            blocks = self.dataset.empty(request) if isinstance(found, Exception) else found
            yield self._moved(self.dataset.finished(blocks, len(request.samples)))
        yield from self._untold()
        self._draw(f"the end of epoch {epoch}", f"{epoch} ends", None)
        position.end()

    def state_dict(self) -> dict[str, Any]:
        """The position: batches that were handed out count as done. Put the loader into a checkpoint's state."""
        return self._position.state(self._settings)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position at the next `for`, on any grid and with any batch size."""
        self._position.load(state, self._settings, "BlockLoader")

    def close(self) -> None:
        """End the threads or processes that read ahead; the next pass starts them again."""
        self._prefetch.close()

    def __enter__(self) -> BlockLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _settings(self) -> dict[str, Any]:
        return {"length": self.order.length, "shuffle": self.order.shuffle, "seed": self.order.seed}

    def _requests(self, epoch: int, start: int) -> Iterator[tuple[ReadRequest, BatchSpan]]:
        """The batches of an epoch, from place `start` of its order on: what to read, and the span of places."""
        order = self.order.samples(epoch)
        for first in range(start, len(order), self.batch_size):
            samples = tuple(order[first : first + self.batch_size].tolist())
            if len(samples) < self.batch_size and self.drop_last:
                return
            request = ReadRequest(samples, self.dataset.boxes(len(samples)), epoch, self.order.seed)
            yield request, (first, first + len(samples))

    def _untold(self) -> Iterator[DataError]:
        """The error of the batch before, if no agreement has told it."""
        drawn, loader = self.dataset.transport.drawn_batches, f"{self._title} of {self.dataset.team}"
        if drawn.has_unreported_problem(loader):
            drawn.forget(loader)
            yield DataError(
                f"{self._title}: a batch could not be read, and no model was called with it, which would have told the others.",
                fix="call a model or layer with every batch, or BlockLoader(..., agree=True).",
            )

    def _draw(self, words: str, key: str, problem: Exception | None) -> None:
        """Record which batch was drawn, for the next agreement to compare; raise if no agreement would."""
        transport, team = self.dataset.transport, self.dataset.team
        loader, says = f"{self._title} of {team}", f"{words} of {self._title}"
        if self.agree:
            together(transport, team, self._title, lambda: _raised(problem, says), lambda _: f"{says} {key}")
            return
        if len(team) == 1 or transport.rank not in team or not is_on():
            _raised(problem, says)
        text = str(problem) if problem is not None else None
        transport.drawn_batches.draw(loader, DrawnBatch(team, key_of(f"{loader} {key}"), says, text))

    def _moved(self, batch: Any) -> Any:
        if self.device is None or self.device.type == "cpu":
            return batch
        if isinstance(batch, Tensor):
            return batch.pin_memory().to(self.device, non_blocking=True)
        return tuple(self._moved(x) for x in batch)


def _spelt(request: ReadRequest, about: BatchSpan) -> str:
    numbers = ", ".join(map(str, request.samples[:SHOWN])) + (", ..." if len(request.samples) > SHOWN else "")
    return f"the batch of samples {numbers} (from place {about[0]} of epoch {request.epoch})"


def _raised(problem: Exception | None, says: str) -> None:
    if problem is not None:
        raise DataError(f"{says}: {problem}") from problem
