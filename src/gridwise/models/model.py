"""A torch model on a grid: an object with the parameters, modes and methods of the model, whose calls run on blocks.

Its class derives from the model's class, so `train()`, `state_dict()` and all other methods are the model's own. While
it is recorded it turns back into the plain model, class included, so the code in `forward` sees what it would see
without Gridwise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import torch
from torch.nn.modules.module import register_module_module_registration_hook

from ..errors import PartitionError, UnsupportedError
from ..nn.parameters.whole_tensor import WRAPPERS
from ..partition import Partition
from ..torch_internals.modules import hooks_of, no_hooks
from .compiled import called_by_compiled_code
from .inputs import Inputs
from .recorder import Options
from .report import Report
from .runner import Runner

GridMethods = Mapping[str, tuple[str, Inputs, Options]]
"""Functions that run on the grid, by name: the name in error messages, the inputs, and the options."""
OWN = "_distributed"
"""The one attribute that a distributed model adds to the user's model."""


@dataclass
class GridState:
    """What a distributed model has in addition to the user's model."""

    user_class: type[torch.nn.Module]
    P_x: Partition
    runners: dict[str, Runner] = field(default_factory=dict)
    hooks: dict[str, Any] = field(default_factory=dict)
    """The hooks of the user's model, which are recorded; hooks registered on the result act on blocks."""
    forward: Callable[..., Any] | None = None
    """A `forward` that was set on the instance rather than on its class."""
    copies: int = 0


class DistributedModel(torch.nn.Module):
    """A model on a grid, made by `distribute`.

    Parameters
    ----------
    *args, **kwargs : those of the model, with blocks in place of tensors

    Attributes
    ----------
    P_x : the partition of the inputs
    P_y : the partition of each output of the last call, in the containers that the model returns; None for a scalar,
        which every worker holds. Known before the first call if `distribute` was given an example

    Examples
    --------
    >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
    >>> isinstance(gridwise.distribute(torch.nn.Linear(3, 2), P_x), gridwise.nn.DistributedModel)
    True
    """

    @property
    def P_x(self) -> Partition:
        return _own(self).P_x

    @property
    def P_y(self) -> Any:
        return _own(self).runners["forward"].P_y

    def P_of(self, method: str) -> Any:
        """Where the outputs of a method lie that runs on the grid, as `P_y` says of those of ``forward``.

        Parameters
        ----------
        method : one of ``distribute(..., methods=...)``, or "forward"

        Examples
        --------
        >>> P_x = gridwise.world().create_cartesian_topology_partition([1, 1])
        >>> model = torch.nn.Linear(3, 2)
        >>> model.halved = lambda x: model.forward(x) / 2
        >>> model = gridwise.distribute(model, P_x, methods=("halved",))
        >>> _ = model.halved(torch.ones(4, 3))
        >>> model.P_of("halved").shape
        (1, 1)
        """
        runners = _own(self).runners
        if method not in runners:
            known = ", ".join(map(repr, runners))
            raise PartitionError(
                f"{type(self).__name__}: `method` (={method!r}) does not run on the grid; {known} do.\n"
                f"  fix: distribute(model, P_x, methods=({method!r},))."
            )
        return runners[method].P_y

    def report(self) -> Report:
        """What the last call gathers and moves, with the module, line and bytes of each gather."""
        return _own(self).runners["forward"].report()

    def forward(self, *args: object, **kwargs: object) -> Any:
        run = _own(self).runners["forward"]
        if torch.compiler.is_compiling():  # by `compile()`
            return called_by_compiled_code(run, *args, **kwargs)
        return run(*args, **kwargs)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if torch.compiler.is_compiling():
            return called_by_compiled_code(torch.nn.Module.__call__, self, *args, **kwargs)
        return torch.nn.Module.__call__(self, *args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own method; the next call compares what the workers have loaded."""
        for runner in _own(self).runners.values():
            runner.replicas_are_new = True
        return super().load_state_dict(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward":
            raise UnsupportedError(
                f"{type(self).__name__}: `forward` was recorded.\n  fix: set it before `distribute`."
            )
        super().__setattr__(name, value)

    def __deepcopy__(self, memo: dict) -> DistributedModel:
        own = _own(self)
        own.copies += 1
        with as_written(self):
            twin = copy.deepcopy(self, memo)
        grid_methods = {name: (runner.says, runner.inputs, runner.options) for name, runner in own.runners.items()}
        key = f"copy {own.copies} of {own.runners['forward'].call_id.key}"
        result = become(twin, self.P_x, grid_methods, key)
        result.__dict__.update(copy.deepcopy(hooks_of(self), memo))
        return result

    def __reduce_ex__(self, protocol: object) -> Any:
        return self.P_x.transport.__reduce__()  # raises, with advice


def refuse_wrapper(outer: torch.nn.Module, name: str, inner: torch.nn.Module | None) -> None:
    """Raise `UnsupportedError` if `outer` is one of torch's wrappers, and a distributed model is in `inner`."""
    if inner is None or {kind.__name__ for kind in type(outer).__mro__}.isdisjoint(WRAPPERS):
        return
    for place, module in inner.named_modules():
        if isinstance(module, DistributedModel):
            what = f"{type(module).__name__}{f', {place} of {type(inner).__name__},' if place else ''}"
            raise UnsupportedError(
                f"{what} is distributed already; {type(outer).__name__} around it would average gradients that are sums.\n"
                "  fix: use it as it is: a grid whose batch axis is longer than 1 is data parallel. Give all workers the same "
                "rows of the data (no DistributedSampler). With Lightning, in place of strategy='ddp': "
                "Trainer(strategy=gridwise.integrations.lightning.GridStrategy(grid=(1, 1, 2, 2)), devices=1). With "
                "Accelerate and transformers: gridwise.integrations.accelerate.GridAccelerator(grid=(1, 1, 2, 2))."
            )


register_module_module_registration_hook(refuse_wrapper)


def _own(model: torch.nn.Module) -> GridState:
    return model.__dict__[OWN]


def runner_of(model: DistributedModel, name: str = "forward") -> Runner:
    """The runner of a method of a distributed model."""
    return _own(model).runners[name]


def become(model: torch.nn.Module, P_x: Partition, grid_methods: GridMethods, key: str = "") -> DistributedModel:
    """Turn a model that nobody else uses into a distributed one, whose methods in `grid_methods` run on the grid."""
    written = type(model)
    own = GridState(written, P_x)
    own.forward = model.__dict__.pop("forward", None)
    own.hooks.update(hooks_of(model))
    model.__dict__.update(no_hooks())
    methods = {name: property(partial(runner_of, name=name)) for name in grid_methods if name != "forward"}
    kind = type(f"Distributed{written.__name__}", (DistributedModel, written), {"__module__": __name__, **methods})
    model.__dict__[OWN] = own
    model.__class__ = kind
    for name, (says, inputs, options) in grid_methods.items():
        call = _call_of(model, "__call__" if name == "forward" else name)
        own.runners[name] = Runner(
            says, call, {"": model}, inputs, options, lambda: as_written(model), f"{key}, {name}" if key else ""
        )
    _guard(model)
    assert isinstance(model, DistributedModel)
    return model


def _call_of(model: torch.nn.Module, name: str) -> Callable[..., Any]:
    """A method of the model, looked up at each call, in the class that the model has at that time."""
    return lambda *args, **kwargs: getattr(model, name)(*args, **kwargs)


@contextmanager
def as_written(model: torch.nn.Module) -> Iterator[None]:
    """Turn a distributed model back into the user's model while the body runs: its class, its forward, its hooks."""
    own = _own(model)
    distributed, hooks = type(model), hooks_of(model)
    guards = [module.__dict__ for module in model.modules() if isinstance(vars(module).get("forward"), _Guard)]
    found = [(held, held.pop("forward")) for held in guards]
    del model.__dict__[OWN]
    try:
        model.__class__ = own.user_class
        model.__dict__.update(own.hooks)
        if own.forward is not None:
            model.__dict__["forward"] = own.forward
        for held, guard in found:
            if guard.before is not None:
                held["forward"] = guard.before
        yield
    finally:
        model.__dict__.pop("forward", None)
        model.__dict__.update(hooks)
        model.__dict__[OWN] = own
        model.__class__ = distributed
        for held, guard in found:
            held["forward"] = guard


class _Guard:
    """Replaces the forward of a submodule, which expects whole tensors and would be given a block."""

    def __init__(self, says: str, before: Callable[..., Any] | None) -> None:
        self.says, self.before = says, before

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise UnsupportedError(
            f"{self.says} is a part of a distributed model, and would see a block as if it were the whole tensor.\n"
            "  fix: call the model, or a method of it that was named: distribute(model, P_x, methods=('encode',))."
        )


def _guard(model: torch.nn.Module) -> None:
    """Refuse direct calls of the model's submodules, except parametrizations, which compute parameters."""
    for name, module in model.named_modules():
        if name and "parametrizations" not in name.split("."):
            before = module.__dict__.get("forward")
            if not isinstance(before, _Guard):
                module.__dict__["forward"] = _Guard(f"{name} ({type(module).__name__})", before)


class DistributedFunction(DistributedModel):
    """A function of tensors on a grid, with the modules that it calls; made by `distribute`."""

    def __init__(
        self,
        says: str,
        function: Callable[..., Any],
        roots: Mapping[str, torch.nn.Module],
        inputs: Inputs,
        options: Options,
    ):
        super().__init__()
        self.__dict__["_modules"].update(roots)
        own = self.__dict__[OWN] = GridState(torch.nn.Module, inputs.P_x)
        own.runners["forward"] = Runner(says, function, roots, inputs, options, lambda: _all_as_written(roots))

    @property  # type: ignore[override]
    def _modules(self) -> dict[str, torch.nn.Module]:
        """The modules that it calls, without those that it is itself a part of: their children would never end."""
        found: dict[str, torch.nn.Module] = self.__dict__["_modules"]
        if any(self in root.modules() for root in found.values()):
            return {name: root for name, root in found.items() if self not in root.modules()}
        return found

    @_modules.setter
    def _modules(self, value: dict[str, torch.nn.Module]) -> None:
        self.__dict__["_modules"] = value

    def named_modules(
        self, memo: set[torch.nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Module]]:
        """As of any module, those that it is a part of included."""
        if not remove_duplicate:
            yield from super().named_modules(memo, prefix, False)
            return
        memo = set() if memo is None else memo
        if self not in memo:
            memo.add(self)
            yield prefix, self
            for name, root in self.__dict__["_modules"].items():
                yield from root.named_modules(memo, f"{prefix}.{name}" if prefix else name)

    def __deepcopy__(self, memo: dict) -> DistributedModel:
        raise UnsupportedError(
            f"{type(self).__name__} cannot be copied: the function would go on calling the same modules.\n"
            "  fix: distribute a function of the copies."
        )


@contextmanager
def _all_as_written(roots: Mapping[str, torch.nn.Module]) -> Iterator[None]:
    with ExitStack() as stack:
        for root in roots.values():
            for module in root.modules():
                if isinstance(module, DistributedModel):
                    stack.enter_context(as_written(module))
        yield
