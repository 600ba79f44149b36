"""Run the benchmarks, all or those named: python benchmarks/run.py [name ...]

One that fails, or takes longer than an hour, does not keep the others from running; all such are named at the end.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
LIMIT = 3600.0


def main() -> None:
    known = sorted(path.stem for path in HERE.glob("*.py") if path.stem != Path(__file__).stem)
    names = sys.argv[1:] or known
    if unknown := set(names) - set(known):
        sys.exit(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}.")
    failed = [name for name in names if not succeeds(name)]
    if failed:
        sys.exit(f"\nfailed: {', '.join(failed)}")


def succeeds(name: str) -> bool:
    print(f"\n== {name}", flush=True)
    start = time.monotonic()
    try:
        code = subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=False, timeout=LIMIT).returncode
    except subprocess.TimeoutExpired:
        print(f"not done after {LIMIT:.0f} s", flush=True)
        return False
    print(f"-- {name}: {time.monotonic() - start:.0f} s{f', exit status {code}' if code else ''}", flush=True)
    return not code


if __name__ == "__main__":
    main()
