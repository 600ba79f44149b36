"""``python -m gridwise.planning.tracing.traced_script FOLDER SCRIPT [ARGS]``: a script whose whole run is traced.

`gridwise run --trace FOLDER` starts its workers this way.
"""

from __future__ import annotations

import runpy
import sys

from .trace import trace


def main() -> None:
    """Run the script in place of this module, inside a trace."""
    if len(sys.argv) < 3:
        raise SystemExit("usage: python -m gridwise.planning.tracing.traced_script FOLDER SCRIPT [ARGS]")
    folder, script = sys.argv[1:3]
    sys.argv = sys.argv[2:]
    sys.path[0] = script.rpartition("/")[0] or "."
    with trace(folder):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise


if __name__ == "__main__":
    main()
