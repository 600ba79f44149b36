"""Aliases of modules that have moved: the documented paths of DistDL and of earlier versions, in one table.

`gridwise.nn.pooling` is now `gridwise.nn.layers.pooling`. Both names give the same module object, so a class is the same
class whichever way it was imported or pickled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType

MOVED = {
    "gridwise.compat": "gridwise_compat",
    "gridwise.comm.transport": "gridwise.comm.transports.base",
    "gridwise.nn.adaptive_pooling": "gridwise.nn.layers.adaptive_pooling",
    "gridwise.nn.all_gather": "gridwise.nn.primitives.all_gather",
    "gridwise.nn.all_sum_reduce": "gridwise.nn.primitives.all_sum_reduce",
    "gridwise.nn.batchnorm": "gridwise.nn.layers.batchnorm",
    "gridwise.nn.broadcast": "gridwise.nn.primitives.broadcast",
    "gridwise.nn.conv": "gridwise.nn.layers.conv",
    "gridwise.nn.conv_transpose": "gridwise.nn.layers.conv_transpose",
    "gridwise.nn.cross_entropy": "gridwise.nn.layers.cross_entropy",
    "gridwise.nn.dropout": "gridwise.nn.layers.dropout",
    "gridwise.nn.halo_exchange": "gridwise.nn.primitives.halo_exchange",
    "gridwise.nn.instancenorm": "gridwise.nn.layers.instancenorm",
    "gridwise.nn.linear": "gridwise.nn.layers.linear",
    "gridwise.nn.loss": "gridwise.nn.layers.loss",
    "gridwise.nn.module": "gridwise.nn.engine.module",
    "gridwise.nn.normalization": "gridwise.nn.layers.normalization",
    "gridwise.nn.padding": "gridwise.nn.layers.padding",
    "gridwise.nn.parameter": "gridwise.nn.parameters.blocks",
    "gridwise.nn.pooling": "gridwise.nn.layers.pooling",
    "gridwise.nn.prelu": "gridwise.nn.layers.prelu",
    "gridwise.nn.primitive": "gridwise.nn.primitives.base",
    "gridwise.nn.reduce_scatter": "gridwise.nn.primitives.reduce_scatter",
    "gridwise.nn.repartition": "gridwise.nn.primitives.repartition",
    "gridwise.nn.replicas": "gridwise.nn.parameters.replicas",
    "gridwise.nn.sum_reduce": "gridwise.nn.primitives.sum_reduce",
    "gridwise.nn.unpooling": "gridwise.nn.layers.unpooling",
    "gridwise.nn.upsampling": "gridwise.nn.layers.upsampling",
    "gridwise.nn.whole_tensor": "gridwise.nn.parameters.whole_tensor",
    "gridwise.tagi.estimators.base": "gridwise.tagi.estimators.sklearn.base",
    "gridwise.tagi.estimators.classifier": "gridwise.tagi.estimators.sklearn.classifier",
    "gridwise.tagi.estimators.noise": "gridwise.tagi.estimators.sklearn.noise",
    "gridwise.tagi.estimators.regressor": "gridwise.tagi.estimators.sklearn.regressor",
    "gridwise.tagi.estimators.search": "gridwise.tagi.estimators.sklearn.search",
    "gridwise.tagi.estimators.stacked": "gridwise.tagi.estimators.sklearn.stacked",
    "gridwise.tagi.estimators.tasks": "gridwise.tagi.estimators.sklearn.tasks",
    "gridwise.tagi.nn.convtranspose2d": "gridwise.tagi.nn.conv2d",
    "gridwise.tagi.nn.resnet_block": "gridwise.tagi.nn.layer_block",
    "gridwise.tagi.nn.slinear": "gridwise.tagi.nn.linear",
}


class ModuleAliases(MetaPathFinder, Loader):
    """Import modules under other names; `place_of` maps an alias to the module's own name, or None if it is not one."""

    def __init__(self, place_of: Callable[[str], str | None]) -> None:
        self.place_of = place_of
        self._own_specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if self.place_of(fullname) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        place = self.place_of(spec.name)
        assert place is not None
        module = import_module(place)
        self._own_specs[spec.name] = module.__spec__
        return module

    def get_code(self, fullname: str) -> CodeType | None:
        """What `python -m` runs under an alias: the code of the module, or of its package's `__main__`."""
        spec = find_spec(str(self.place_of(fullname)))
        if spec is not None and spec.submodule_search_locations:
            spec = find_spec(f"{spec.name}.__main__")
        return None if spec is None else spec.loader.get_code(spec.name)  # type: ignore[union-attr]

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, which the import under the alias has replaced; its code has already run."""
        assert module.__spec__ is not None
        module.__spec__ = self._own_specs.pop(module.__spec__.name)


def moved_modules(package: str) -> Callable[[str], ModuleType]:
    """A `__getattr__` that gives a package's moved modules as attributes under their old names."""

    def __getattr__(name: str) -> ModuleType:
        if f"{package}.{name}" in MOVED:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__


sys.meta_path.append(ModuleAliases(MOVED.get))  # last: only for names that no other finder knows
