"""MONAI: an inferer that gives the network's own numbers, where `SlidingWindowInferer` blends those of windows.

inferer = ExactInferer(memory="6GiB")
y = inferer(volume, network)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..models.recording.containers import flatten, unflatten
from ..partition import PartitionLike
from .exact import Function, exact
from .libraries import library

Inferer: Any = library("monai.inferers").Inferer
MetaTensor: Any = library("monai.data").MetaTensor

KEPT = 8
"""How many networks are kept ready to run, as for an ensemble."""


class ExactInferer(Inferer):
    """Runs a network on the whole input by tiles, within a limit of memory: the numbers of ``network(inputs)``.

    It stands where a `SlidingWindowInferer` stands. Norms see the whole volume, and nothing overlaps or is blended.

    Parameters
    ----------
    memory : what a call may use on the device of the network, as in `gridwise.tiled`; default: what is free, less a tenth
    P_x : in place of `memory`: a partition, or the shape of a grid of all workers, with an axis for each dim of the
        input. The network then runs on its workers. All of them call with the whole input, and get the whole result
    tile, store, progress : as in `gridwise.tiled`

    Examples
    --------
    >>> from gridwise.integrations.monai import ExactInferer
    >>> network = torch.nn.Sequential(torch.nn.Conv3d(1, 4, 3), torch.nn.InstanceNorm3d(4))
    >>> volume = torch.rand(1, 1, 40, 40, 40)
    >>> torch.allclose(ExactInferer(memory="1MiB")(volume, network), network(volume), atol=1e-5)
    True
    """

    def __init__(
        self,
        memory: str | int | None = None,
        P_x: PartitionLike | None = None,
        *,
        tile: int | tuple[int, ...] | None = None,
        store: str | Path | None = None,
        progress: bool | None = None,
    ) -> None:
        super().__init__()
        self.memory, self.P_x = memory, P_x
        self.options = {"tile": tile, "store": store, "progress": progress}
        self._kept: dict[Callable[..., Any], Function] = {}

    def __call__(self, inputs: torch.Tensor, network: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The network's output; a `MetaTensor` has the affine of the input, as after sliding windows.

        Parameters
        ----------
        inputs : the whole input; without a partition, also a file or an array that is larger than memory
        network : a torch model, or a function of tensors that calls models
        *args, **kwargs : further arguments of the network
        """
        run = self._kept.get(network)
        if run is None:
            run = self._kept[network] = exact(network, self.memory, self.P_x, **self.options)
            if len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]
        if not isinstance(inputs, MetaTensor):
            return run(inputs, *args, **kwargs)
        leaves, tree = flatten(run(inputs.as_tensor(), *args, **kwargs))
        return unflatten(tree, [MetaTensor(y).copy_meta_from(inputs, copy_attr=False) for y in leaves])
