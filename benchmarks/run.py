"""Run all benchmarks, or those named: python benchmarks/run.py [--write] [name ...]

A benchmark that fails or takes longer than an hour does not stop the others; all such are named at the end. With
`--write`, what a benchmark prints replaces its figures in README.md, along with the command, the version and the
machine, and the pictures there are drawn again. The output of a benchmark that fails, or has nothing to measure on this
machine, is not written. `--draw` runs nothing and draws the pictures of the figures that are there.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Timer

import plots

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
LIMIT = 3600.0
NOTHING_HERE = 77
"""Exit status of a benchmark whose device this machine does not have."""
WIDTH = "140"
"""Columns of a table: the width of the page, whatever the terminal's."""


def main() -> None:
    known = sorted(path.stem for path in HERE.glob("*.py") if path.stem != Path(__file__).stem)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"default: all of {', '.join(known)}")
    parser.add_argument("--write", action="store_true", help="put the figures into README.md")
    parser.add_argument("--draw", action="store_true", help="draw the pictures of README.md's figures, and run nothing")
    options = parser.parse_args()
    if options.draw:
        plots.draw(PAGE)
        return
    names = options.names or known
    if unknown := set(names) - set(known):
        sys.exit(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}.")
    failed = []
    for name in names:
        said = run(name)
        if said is None:
            failed.append(name)
        elif said and options.write:
            PAGE.write_text(with_figures(PAGE.read_text(encoding="utf-8"), name, said), encoding="utf-8")
    if options.write:
        plots.draw(PAGE)
    if failed:
        sys.exit(f"\nfailed: {', '.join(failed)}")


def run(name: str) -> str | None:
    """What a benchmark prints, echoed as it runs; None if it fails, '' if there is nothing to measure."""
    print(f"\n== {name}", flush=True)
    start = time.monotonic()
    command = [sys.executable, str(HERE / f"{name}.py")]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": WIDTH}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, encoding="utf-8") as process:
        late = Timer(LIMIT, process.kill)
        late.start()
        lines = []
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        code = process.wait()
        in_time = late.is_alive()
        late.cancel()
    if not in_time:
        print(f"not done after {LIMIT:.0f} s", flush=True)
    print(f"-- {name}: {time.monotonic() - start:.0f} s{f', exit status {code}' if code else ''}", flush=True)
    if code == NOTHING_HERE:
        return ""
    return None if code else "".join(lines)


def with_figures(page: str, name: str, said: str) -> str:
    """The page with the output of `name` between its marks; a section is added for a benchmark without one."""
    start, stop = f"<!-- figures of {name} -->", f"<!-- end of {name} -->"
    figures = "\n".join(line.rstrip() for line in said.strip("\n").splitlines())
    block = f"{start}\n`python benchmarks/{name}.py`: {machine()}\n\n```text\n{figures}\n```\n{stop}"
    if start not in page:
        return f"{page.rstrip()}\n\n## {name.replace('_', ' ').capitalize()} (`{name}.py`)\n\n{block}\n"
    return re.sub(f"{re.escape(start)}.*?{re.escape(stop)}", lambda _: block, page, count=1, flags=re.DOTALL)


def machine() -> str:
    """The machine and the versions that the figures were measured with."""
    found = []
    for package in ("gridwise", "torch", "mpich"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    load = f", load {os.getloadavg()[0]:.1f} at the end" if hasattr(os, "getloadavg") else ""
    return f"{date.today()}, {os.cpu_count()} cores ({processor()}){load}; {', '.join(found)}."


def processor() -> str:
    try:
        return re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))[0]
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
