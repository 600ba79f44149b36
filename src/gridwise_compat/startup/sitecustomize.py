"""Run at the start of child processes of a program with `gridwise_compat`: installs a finder for the old names.

Python runs only the first `sitecustomize` on its path, so this one then runs the next.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder


class _Waiting:
    """Installs `gridwise_compat` at the first import of one of its libraries."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        library = fullname.partition(".")[0]
        if library not in os.environ.get("GRIDWISE_COMPAT", "").split(","):
            return None
        sys.meta_path.remove(self)
        from gridwise_compat import install

        install(filter(None, os.environ["GRIDWISE_COMPAT"].split(",")))
        return importlib.util.find_spec(fullname)


def _run_the_next() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    others = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("GRIDWISE_COMPAT"):
    sys.meta_path.insert(0, _Waiting())
_run_the_next()
