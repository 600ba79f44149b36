"""Two network namespaces as two hosts, with names and shared memory of their own, under torchrun and hydra."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridwise.comm.launching.start import mpi_missing, mpiexec
from launchers import JOB, Run, check_death, check_run, run, torchrun

pytestmark = pytest.mark.launchers

HOSTS = ("left", "right")
PORT = 29533


class Hosts:
    """Two namespaces, joined by a cable; a process in one sees its own network, host name and /dev/shm."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.names = {host: f"gridwise-{host}-{os.getpid()}" for host in HOSTS}
        self.addresses = dict(zip(HOSTS, ("10.213.7.1", "10.213.7.2"), strict=True))
        hosts = "127.0.0.1 localhost\n" + "".join(f"{address} {host}\n" for host, address in self.addresses.items())
        (home / "hosts").write_text(hosts)
        (home / "ssh").write_text(self._ssh())
        (home / "ssh").chmod(0o755)

    def start(self) -> None:
        for name in self.names.values():
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        ends = [f"gw{os.getpid() % 100000}{end}" for end in "ab"]
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for end, host in zip(ends, HOSTS, strict=True):
            name = self.names[host]
            _ip("link", "set", end, "netns", name)
            _ip("-n", name, "addr", "add", f"{self.addresses[host]}/24", "dev", end)
            _ip("-n", name, "link", "set", end, "up")

    def stop(self) -> None:
        for name in self.names.values():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def inside(self, host: str, command: list[str]) -> list[str]:
        """The command line that runs another one on a host."""
        return [str(self.home / "ssh"), host, *command]

    def _ssh(self) -> str:
        """What hydra takes for ssh: it enters a namespace instead of a machine."""
        cases = "\n".join(
            f"  {host}|{self.addresses[host]}) namespace={name} host={host} ;;" for host, name in self.names.items()
        )
        return f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
case "$1" in
{cases}
  *) echo "no host $1" >&2; exit 1 ;;
esac
shift
export command="$*" host
exec ip netns exec "$namespace" unshare --mount --uts sh -c '
  hostname "$host" && mount -t tmpfs tmpfs /dev/shm && mount --bind {self.home}/hosts /etc/hosts && eval "exec $command"'
"""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if shutil.which("ip") is None:
        pytest.skip("ip is not installed: tests/launchers/install.sh installs iproute2")
    if os.geteuid() != 0:
        pytest.skip("network namespaces are made by root")
    two = Hosts(tmp_path_factory.mktemp("hosts"))
    try:
        two.start()
        probe = subprocess.run(two.inside("left", ["hostname"]), capture_output=True, text=True)
        if probe.stdout.strip() != "left":
            pytest.skip(f"no second host on this system: {probe.stderr.strip()}")
        yield two
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces on this system: {error.stderr.strip()}")
    finally:
        two.stop()


def on_both(hosts: Hosts, words: list[str]) -> Run:
    """torchrun on each host, as one starts it on machines that nobody has joined to a cluster."""
    found: dict[str, Run] = {}

    def start(number: int, host: str) -> None:
        options = ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "2"]
        options += ["--master-addr", hosts.addresses["left"], "--master-port", str(PORT)]
        found[host] = run(hosts.inside(host, torchrun(*options, JOB, *words)))

    threads = [threading.Thread(target=start, args=pair) for pair in enumerate(HOSTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Run(max(abs(run.status) for run in found.values()), "\n".join(run.text for run in found.values()))


def check_places(done: Run) -> None:
    assert [done.workers[rank][2] for rank in range(4)] == ["left", "left", "right", "right"]


def test_torchrun(hosts: Hosts) -> None:
    done = on_both(hosts, [])
    check_run(done, "gloo", 4)
    check_places(done)


def test_a_death_under_torchrun_is_named(hosts: Hosts) -> None:
    check_death(on_both(hosts, ["3"]), "gloo", 4, victim=3)


def hydra(hosts: Hosts, words: list[str]) -> Run:
    missing = mpi_missing()
    if missing:
        pytest.skip(missing)
    command = [str(mpiexec()), "-launcher", "ssh", "-launcher-exec", str(hosts.home / "ssh")]
    command += ["-hosts", "left,right", "-ppn", "2", "-n", "4", sys.executable, JOB, *words]
    return run(hosts.inside("left", command))


def test_hydra(hosts: Hosts) -> None:
    done = hydra(hosts, [])
    check_run(done, "mpi", 4)
    check_places(done)


def test_a_death_under_hydra_is_named(hosts: Hosts) -> None:
    check_death(hydra(hosts, ["3"]), "mpi", 4, victim=3)
