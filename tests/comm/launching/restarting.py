"""The script on the page on launching, run by `gridwise run` or torchrun, and how its workers die."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

DOCS = Path(__file__).parents[3] / "docs"
GRIDWISE = [sys.executable, "-m", "gridwise", "run"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def script_of(folder: Path, steps: int = 6, deaths: str = "", pause: float = 0.0) -> Path:
    """The page's script in a folder of its own. `deaths` is a condition, before a step, under which a worker kills itself."""
    page = (DOCS / "launching.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```\{code-block\} python\n:caption: train.py\n\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    loop = "for step in range(start, 20):\n"
    assert loop in text
    dies = f"    if {deaths or False}:\n        __import__('os').kill(__import__('os').getpid(), 9)\n"
    waits = f"    __import__('time').sleep({pause})\n"
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text(text.replace(loop, f"for step in range(start, {steps}):\n{dies}{waits}"), encoding="utf-8")
    return script


def started(
    command: list[str], script: Path, out: int | IO[str] = subprocess.PIPE, **variables: str
) -> subprocess.Popen[str]:
    """The command with the script, in the script's folder."""
    return subprocess.Popen(
        [*command, str(script)],
        cwd=script.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdout=out,
        stderr=out,
        text=True,
    )


def losses_of(text: str) -> list[float]:
    """The losses that the first worker has printed."""
    lines = set(re.findall(r"^\[(\d.*)\]$", text, re.MULTILINE))
    assert len(lines) == 1, text[-5000:]
    return [float(number) for number in lines.pop().split(",")]


def processes_with(variable: str) -> list[int]:
    """The processes with this `NAME=value` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def running(pid: int, script: Path) -> bool:
    """Whether this is a process of the script or its launcher, and none that looks after them."""
    with contextlib.suppress(OSError):
        return str(script).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
