"""torchrun, as `gridwise run` starts it: of a worker that dies it says which and how, in one line.

What torch's own says besides, `GRIDWISE_LOG=debug` shows: warnings, a traceback of itself, and a table of all workers.
"""

from __future__ import annotations

import logging
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from ...log import is_debugging
from .start import spelt_exit


def main() -> None:
    """Run with the arguments of the command line, which are torchrun's."""
    if is_debugging():
        run.main()
        return
    logging.disable(logging.CRITICAL)  # in this process, not in the workers
    try:
        run.main()
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        how = spelt_exit(failure.exitcode)
        print(
            f"gridwise: worker {rank} was the first to end, with {how}. GRIDWISE_LOG=debug shows more.", file=sys.stderr
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
