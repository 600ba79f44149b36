"""Makes `import distdl`, `import torchdistx` and `import pytagi` find the packages of these names in gridwise_compat.

    distdl.nn.conv           is   gridwise_compat.distdl.nn.conv
    distdl.nn.conv_feature   is   the same module, by the table in old_modules.py
    torchdistx.fake          is   gridwise.fake, by the same table

All names of a module give one module object, so a class is the same class however it was imported or pickled. Child
processes inherit the finder through two environment variables: `GRIDWISE_COMPAT` names the libraries, and `PYTHONPATH`
begins with the folder `startup`, whose `sitecustomize` installs a minimal finder that imports this module only when one
of the old names is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from gridwise.aliases import ModuleAliases
from gridwise.errors import GridwiseError, PartitionError

from .notes import is_first_worker
from .old_modules import HERE, OLD_MODULES

LIBRARIES = ("distdl", "torchdistx", "pytagi")
VARIABLE = "GRIDWISE_COMPAT"
STARTUP = str(Path(__file__).parent / "startup")


class CompatFinder(ModuleAliases):
    """Finds the modules of some libraries in this package. It comes first, so it hides an installed library."""

    def __init__(self, libraries: Sequence[str]) -> None:
        super().__init__(lambda name: OLD_MODULES.get(name.removeprefix(f"{HERE}."), f"{HERE}.{name}"))
        self.libraries = tuple(libraries)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        old = fullname.removeprefix(
            f"{HERE}."
        )  # `from torchdistx import fake` asks for gridwise_compat.torchdistx.fake
        library = old.partition(".")[0]
        if library not in self.libraries:
            return None
        if old in OLD_MODULES:
            return super().find_spec(fullname)
        if old != fullname:
            return None
        if old.rpartition(".")[0] in OLD_MODULES or find_spec(f"{HERE}.{old}") is None:
            raise ModuleNotFoundError(
                f"{fullname} is not among the modules of {library} that Gridwise provides: see docs/from-{library}.md.",
                name=fullname,
            )
        return super().find_spec(fullname)

    def exec_module(self, module: ModuleType) -> None:
        """Load a module, and set loaded modules of the table as attributes of the packages they used to be in."""
        super().exec_module(module)
        for name, place in OLD_MODULES.items():
            package, _, leaf = name.rpartition(".")
            if place in sys.modules and f"{HERE}.{package}" in sys.modules:
                setattr(sys.modules[f"{HERE}.{package}"], leaf, sys.modules[place])


def install(libraries: Iterable[str] = LIBRARIES, *, prefer_installed: bool = False) -> None:
    """Make the old names importable, in this process and in those that it starts. Further calls do nothing.

    Parameters
    ----------
    libraries : which of 'distdl', 'torchdistx' and 'pytagi'
    prefer_installed : use the original library where it is installed; otherwise a line on stderr says it is not used

    Raises
    ------
    GridwiseError : if the installed library has been imported already: its classes and these would be mixed.

    Examples
    --------
    >>> import gridwise_compat
    >>> gridwise_compat.install()  # doctest: +SKIP
    >>> from distdl.backends.mpi.partition import MPIPartition  # doctest: +SKIP
    """
    wanted = _checked(libraries)
    finder = _standing()
    new = [name for name in wanted if finder is None or name not in finder.libraries]
    found = {name: _installed_at(name) for name in new}
    if prefer_installed:
        new = [name for name in new if found[name] is None]
    loaded = [name for name in new if name in sys.modules]
    if loaded:
        raise GridwiseError(
            f"compat.install: {', '.join(loaded)} has been imported already, from its own installation.",
            [f"{name} is {getattr(sys.modules[name], '__file__', 'in memory')}" for name in loaded],
            "call install() before the first import of it, or start the program with `gridwise compat script.py`.",
        )
    inherited = _named_in_environment()
    for name in new:
        if found[name] is not None and name not in inherited and is_first_worker():
            print(f"gridwise_compat: {name} is Gridwise's; the one at {found[name]} is not used.", file=sys.stderr)
    if not new:
        return
    kept = finder.libraries if finder is not None else ()
    if finder is not None:
        sys.meta_path.remove(finder)
    sys.meta_path.insert(0, CompatFinder((*kept, *new)))
    _let_children_inherit((*kept, *new))


def _checked(libraries: Iterable[str]) -> tuple[str, ...]:
    wanted = (libraries,) if isinstance(libraries, str) else tuple(libraries)
    wrong = [name for name in wanted if name not in LIBRARIES]
    if wrong:
        raise PartitionError(f"`libraries` (={wanted}) must be among {', '.join(LIBRARIES)}.")
    return wanted


def _standing() -> CompatFinder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, CompatFinder)), None)


def _installed_at(name: str) -> str | None:
    spec = PathFinder.find_spec(name)
    if spec is None:
        return None
    return spec.origin or ", ".join(spec.submodule_search_locations or ()) or "an unknown place"


def _named_in_environment() -> tuple[str, ...]:
    return tuple(filter(None, os.environ.get(VARIABLE, "").split(",")))


def _let_children_inherit(libraries: Sequence[str]) -> None:
    os.environ[VARIABLE] = ",".join(dict.fromkeys((*_named_in_environment(), *libraries)))
    folders = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each != STARTUP]
    home = str(Path(__file__).resolve().parents[1])
    here = [] if home in folders else [home]
    os.environ["PYTHONPATH"] = os.pathsep.join([STARTUP, *folders, *here])
