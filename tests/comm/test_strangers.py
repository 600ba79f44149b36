"""Every port that a job opens is attacked by another user while the job starts and works; the job ends well all the same."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gridwise.comm.launching.start import clean, mpi_missing

MARK = "GRIDWISE_TEST_MARK"
STRANGER = Path(__file__).with_name("stranger.py")
BODY = """
import time, torch, gridwise
def body():
    transport = gridwise.world().transport
    gridwise.world().barrier()
    ends, total = time.monotonic() + {seconds}, 0.0
    while total >= 0:
        more = torch.tensor([1.0 if time.monotonic() < ends else -1e9])
        total = transport.all_sum(more, transport.everyone).item()
        assert total == transport.size or total < 0
    return gridwise.world().rank
"""
RUN = BODY + "if body() == 0: print('well', flush=True)\n"
LAUNCH = (
    BODY
    + "if __name__ == '__main__' and gridwise.launch(body, workers=2, transport={transport!r}) == [0, 1]: print('well')\n"
)
CLI = "from gridwise.cli import main; main()"

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0, reason="attacks as another user, which needs root"),
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="finds ports in /proc"),
]


def listening(mark: bytes) -> dict[int, str]:
    """The ports at which processes with this mark listen, and the commands of those."""
    inodes: dict[str, str] = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                for link in (entry / "fd").iterdir():
                    if found := re.match(r"socket:\[(\d+)\]", os.readlink(link)):
                        inodes.setdefault(found[1], command)
        except OSError:
            continue
    ports = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports[int(fields[1].split(":")[1], 16)] = inodes[fields[9]]
    return ports


@pytest.mark.parametrize(
    "transport", ["gloo", pytest.param("mpi", marks=pytest.mark.skipif(mpi_missing() is not None, reason="no MPI"))]
)
@pytest.mark.parametrize("launcher", ["launch", "run"])
def test_a_job_under_attack_ends_well(tmp_path: Path, launcher: str, transport: str) -> None:
    script, mark = tmp_path / "job.py", secrets.token_hex(8)
    text = LAUNCH if launcher == "launch" else RUN
    script.write_text(text.format(seconds=6, transport=transport))
    command = (
        [str(script)] if launcher == "launch" else ["-c", CLI, "run", "-n", "2", "--transport", transport, str(script)]
    )
    environment = {**clean(os.environ), MARK: mark, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    code = STRANGER.read_text()
    stranger = subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert stranger.stdin is not None
    attacked: dict[int, str] = {}
    deadline = time.monotonic() + 400
    while job.poll() is None and time.monotonic() < deadline:
        for port, owner in listening(f"{MARK}={mark}".encode()).items():
            if port not in attacked:
                attacked[port] = owner
                stranger.stdin.write(f"{port}\n")
                stranger.stdin.flush()
        time.sleep(0.05)
    reached = json.loads(stranger.communicate()[0])
    job.kill()
    output, errors = job.communicate()
    assert sum(reached.values()) > 10, f"no attack: of {attacked}, {reached}"
    assert "well" in output, f"attacked {attacked}\n{output}\n{errors}"
    assert job.returncode == 0
