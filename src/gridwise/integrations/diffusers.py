"""diffusers: autoencoders that encode and decode large pictures and videos by tiles, without seams.

exact_tiling(pipe, memory="6GiB")       # in place of pipe.vae.enable_tiling()
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..errors import ArgumentError
from ..partition import PartitionLike
from .exact import Function, exact
from .libraries import library

library("diffusers")

METHODS = ("encode", "decode")


class ExactTiling:
    """An autoencoder whose `encode` and `decode` are exact, until `undo` is called; also a context, which ends so.

    Parameters
    ----------
    vae : the autoencoder
    functions : by the names of its methods, what replaces them
    """

    def __init__(self, vae: torch.nn.Module, functions: dict[str, Function]) -> None:
        self.vae, self.functions = vae, functions
        self._tiled = getattr(vae, "use_tiling", None)
        if self._tiled:
            vae.use_tiling = False  # type: ignore[assignment]
        vae.__dict__.update(functions)

    def undo(self) -> None:
        """Give the autoencoder its own methods, and its own tiling if that was enabled."""
        for name, function in self.functions.items():
            if self.vae.__dict__.get(name) is function:
                del self.vae.__dict__[name]
        if self._tiled:
            self.vae.use_tiling = True  # type: ignore[assignment]

    def __enter__(self) -> torch.nn.Module:
        return self.vae

    def __exit__(self, *failure: object) -> None:
        self.undo()


class _OnDevice:
    """A function of an autoencoder, which is moved to its device first if a pipeline has offloaded it."""

    def __init__(self, vae: torch.nn.Module, function: Function) -> None:
        self.vae, self.function = vae, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        pre_forward = getattr(getattr(self.vae, "_hf_hook", None), "pre_forward", None)
        if pre_forward is not None:
            pre_forward(self.vae)
        return self.function(*args, **kwargs)


def exact_tiling(
    pipe_or_vae: Any,
    memory: str | int | None = None,
    P_x: PartitionLike | None = None,
    *,
    tile: int | tuple[int, ...] | None = None,
    store: str | Path | None = None,
    progress: bool | None = None,
) -> ExactTiling:
    """Let an autoencoder encode and decode by exact tiles, within a limit of memory: no seams, no blending.

    In place of ``pipe.vae.enable_tiling()``. Norms and attention see the whole picture, so the result is that of the
    plain call; attention over a large picture takes as long as in that.

    Parameters
    ----------
    pipe_or_vae : a pipeline with a `vae`, or an autoencoder. It is changed, until `undo` of the result is called
    memory : what a call may use on the device of the autoencoder, as in `gridwise.tiled`; default: what is free, less a
        tenth
    P_x : in place of `memory`: a partition, or the shape of a grid of all workers, with an axis for each dim of the
        latent. The autoencoder then runs on its workers. All of them call with the whole tensor, and get the whole
        result
    tile, store, progress : as in `gridwise.tiled`

    Examples
    --------
    >>> from gridwise.integrations.diffusers import exact_tiling
    >>> from diffusers import AutoencoderKL
    >>> vae, z = AutoencoderKL(norm_num_groups=8).eval(), torch.randn(1, 4, 32, 32)
    >>> with torch.no_grad(), exact_tiling(vae, memory="8MiB"):
    ...     picture = vae.decode(z).sample
    """
    vae = getattr(pipe_or_vae, "vae", pipe_or_vae)
    names = [name for name in METHODS if callable(getattr(vae, name, None))]
    if not isinstance(vae, torch.nn.Module) or not names:
        raise ArgumentError(
            f"exact_tiling: `pipe_or_vae` (={type(pipe_or_vae).__name__}) has no `vae`, and is none.",
            fix="give a pipeline, or its autoencoder.",
        )
    own = {name: getattr(type(vae), name).__get__(vae) for name in names}
    options = {"tile": tile, "store": store, "progress": progress}
    return ExactTiling(
        vae, {name: _OnDevice(vae, exact(method, memory, P_x, **options)) for name, method in own.items()}
    )
