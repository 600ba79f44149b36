"""`python -m gridwise_compat [--prefer-installed] (script.py | -m module) [args]`: run it with the old names."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from gridwise.errors import GridwiseError
from gridwise_compat.finder import install

USAGE = "usage: python -m gridwise_compat [--prefer-installed] (script.py | -m module) [args]"


def main(arguments: Sequence[str]) -> None:
    """Run the script or module as Python would run it, after `install()`."""
    left = list(arguments)
    prefer_installed = bool(left) and left[0] == "--prefer-installed"
    left = left[prefer_installed:]
    by_name = bool(left) and left[0] == "-m"
    left = left[by_name:]
    if left[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return
    if not left or left[0].startswith("-"):
        raise SystemExit(USAGE)
    target = left[0]
    if not by_name and not os.path.exists(target):
        raise SystemExit(f"gridwise compat: there is no script {target!r}.\n{USAGE}")
    try:
        install(prefer_installed=prefer_installed)
    except GridwiseError as error:
        raise SystemExit(f"gridwise compat: {error}") from None
    sys.argv[:] = left
    if by_name:
        sys.path[0] = os.getcwd()
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(target))
        runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
