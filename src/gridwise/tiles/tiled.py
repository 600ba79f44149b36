"""`tiled`: run an ordinary torch model on inputs of any size, on one device, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import PartitionError, UnsupportedError
from ..models.distribute import REFUSED
from ..models.roots import roots_of
from .limits import Limits
from .plan import TilePlan, plan_of
from .runner import TiledRunner


class TiledModel(torch.nn.Module):
    """A model that runs by tiles, made by `tiled`. It is the model in all else: same class, same parameters, same state.

    Parameters
    ----------
    *args, **kwargs : those of the model; a tensor may be an array or a file that is too large for memory
    out : an array or the path of a new file (.zarr, .npy, .h5), or several, to which the result is written as it is computed

    Examples
    --------
    >>> big = gridwise.tiled(torch.nn.Conv2d(1, 4, 3), tile=(8, 8))
    >>> isinstance(big, torch.nn.Conv2d), big(torch.ones(1, 1, 30, 30)).shape
    (True, torch.Size([1, 4, 28, 28]))
    """

    _tiled_runners: dict[str, TiledRunner]
    _tiled_model: Any

    def forward(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        return type(self)._tiled_runners["forward"](args, kwargs, out)

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        return type(self)._tiled_runners["forward"](args, kwargs, out)

    def plan(self, *shapes: Any, backward: bool = False, method: str = "forward") -> TilePlan:
        """What a call with inputs of these shapes does: stages, tiles, work, bytes stored, memory and time.

        Parameters
        ----------
        *shapes : for each input its shape (with the dtype of the parameters), or a tensor or a file like it
        backward : whether the call is to be differentiated
        method : which method is called
        """
        runners = type(self)._tiled_runners
        if method not in runners:
            raise PartitionError(
                f"plan: `method` (={method!r}) does not run by tiles; {', '.join(runners)} does.",
                fix="name it in `methods` of `tiled`.",
            )
        return plan_of(runners[method], shapes, backward)

    def __deepcopy__(self, memo: dict) -> Any:
        raise UnsupportedError(
            f"{type(self).__name__} shares all that it has with the model.\n  fix: copy the model, and give the copy to tiled."
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not hasattr(type(self), "_tiled_model"):
            raise UnsupportedError(f"{type(self).__name__} is made by `tiled` from a function, and cannot be pickled.")
        return _itself, (type(self)._tiled_model,)


def tiled(
    model: torch.nn.Module | Callable[..., Any],
    memory: str | int | None = None,
    *,
    tile: int | Sequence[int] | None = None,
    store: str | Path | None = None,
    methods: str | Sequence[str] = (),
    progress: bool | None = None,
    device: object = None,
    overwrite: bool = False,
) -> TiledModel:
    """The same model, for inputs of any size: it computes tile by tile, in bounded memory, and gives the same numbers.

    Nothing is approximated: tiles get the halos that they need, norms the statistics of the whole input, attention all
    keys. At the first call with inputs of a new structure the model is recorded, as by `distribute`, and cut into
    stages; `plan` shows them. Backward computes tiles again, and gives the model's exact gradients.

    Parameters
    ----------
    model : a torch model, or a function of tensors that calls modules (with a loss, say). Parameters are shared, not copied
    memory : how much memory a call may use on the device, besides parameters, their gradients and your own tensors; a
        number of bytes, or text such as "6GiB". Default: what is free, less a tenth
    tile : in place of `memory`: the most rows of a tile along the last dims, as in ``(256, 256)``
    store : a folder for what lies between stages, or "memory". Default: host memory for a GPU; on a CPU, where the two
        are one memory, the folder for temporary files if it does not fit into `memory` too
    methods : names of further methods that run by tiles, as in ``("decode",)``
    progress : whether a bar shows the time left; default: on a terminal
    device : where tiles are computed; default: where the parameters are
    overwrite : whether ``out=`` may replace a file that is there

    Returns
    -------
    TiledModel : an object of the model's own class. ``big(x, out=array)`` writes the result to an array as it is computed,
        ``big(x, out="result.zarr")`` to a file, which gets its name when all of it is written

    Raises
    ------
    UnsupportedError : naming what cannot be tiled, with its module and line, or the operator that needs more memory

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.GroupNorm(2, 8), torch.nn.ReLU())
    >>> big = gridwise.tiled(model, memory="2MiB")
    >>> x = torch.rand(1, 1, 256, 256)
    >>> torch.allclose(big(x), model(x), atol=1e-5)
    True
    """
    limits = Limits.of(memory, tile, store, device)
    methods = (methods,) if isinstance(methods, str) else tuple(methods)
    if isinstance(model, torch.nn.Module):
        return _of_model(model, limits, methods, progress, overwrite)
    if not callable(model) or isinstance(model, type):
        raise PartitionError(
            f"tiled: `model` (={model!r}) is no torch.nn.Module and no function.\n  fix: give one of the two."
        )
    if methods:
        raise PartitionError("tiled: `methods` are those of a model; a function has none.")
    name = getattr(model, "__name__", type(model).__name__)
    roots = roots_of(model)
    for root in roots.values():
        _refuse(root)
    kind: Any = type("TiledFunction", (TiledModel,), {"__module__": __name__})
    twin = kind.__new__(kind)
    torch.nn.Module.__init__(twin)
    twin._modules.update(roots)
    kind._tiled_runners = {"forward": TiledRunner(f"the tiled {name}", model, roots, limits, progress, overwrite)}
    return twin


def _of_model(
    model: torch.nn.Module, limits: Limits, methods: tuple[str, ...], progress: bool | None, overwrite: bool
) -> TiledModel:
    _refuse(model)
    written = type(model)
    says = f"the tiled {written.__name__}"
    runners = {"forward": TiledRunner(says, model, {"": model}, limits, progress, overwrite)}
    for name in methods:
        function = getattr(model, name, None)
        if not callable(function):
            raise PartitionError(f"tiled: {written.__name__} has no method {name!r}.")
        runners[name] = TiledRunner(f"{name} of {says}", function, {"": model}, limits, progress, overwrite)
    own = {name: _method(name) for name in methods}
    body = {"__module__": __name__, "_tiled_runners": runners, "_tiled_model": model, **own}
    kind: Any = type(f"Tiled{written.__name__}", (TiledModel, written), body)
    twin = kind.__new__(kind)
    object.__setattr__(twin, "__dict__", model.__dict__)  # modes, parameters and all else are those of the model
    return twin


def _itself(model: torch.nn.Module) -> torch.nn.Module:
    """What a pickled model by tiles is when it is loaded: the model."""
    return model


def _method(name: str) -> Any:
    def call(self: TiledModel, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        return type(self)._tiled_runners[name](args, kwargs, out)

    call.__name__ = name
    return call


def _refuse(model: torch.nn.Module) -> None:
    """Refuse models that can be seen to be unsupported without recording them."""
    kinds = ((TiledModel, "is tiled already", "give the model itself"), *REFUSED)
    for path, module in model.named_modules():
        for kind, reason, fix in kinds:
            if isinstance(module, kind):
                place = f"{type(model).__name__}{f', its {path},' if path else ''}"
                raise UnsupportedError(f"tiled: {place} {reason}.\n  fix: {fix}.")
