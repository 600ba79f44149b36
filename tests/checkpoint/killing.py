"""kill -9 of a random worker at random moments of saves, again and again; run by test_kill.py as a program of its own.

    python killing.py FOLDER FIRST_SEED TRIALS      at random moments
    python killing.py FOLDER before VARIANT...      before each single call that changes a file
    python killing.py FOLDER everywhere VARIANT...  before and after each of them

Workers are forked from this process, which has imported torch once, and talk over a socket; nothing else is shared. In
each trial they save version after version (replacing one path, in a series, or in the background) until one of them is
killed. Then everything that is committed must be whole and of one version, no older than what was reported as saved;
left-overs must not be listed, must not block the next save, and must be gone after it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blocks import line, split
from torch import Tensor

from gridwise import checkpoint
from gridwise.checkpoint import disk
from gridwise.comm.messages.requests import Request
from gridwise.comm.transports.base import PeerTensor, Team, Transport
from gridwise.partition import Partition, world

SPLIT, SAME = (300, 400), (250, 300)
VARIANTS = ("replace", "series", "background")


class StarTransport(Transport):
    """Workers that talk to the first one over sockets; whoever loses its connection raises."""

    name = "star"

    def __init__(self, rank: int, size: int, address: str) -> None:
        super().__init__(rank, size)
        self.peers: dict[int, socket.socket] = {}
        if rank == 0:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen()
                for _ in range(size - 1):
                    peer, _ = listener.accept()
                    self.peers[struct.unpack("q", self._take(peer, 8))[0]] = peer
        else:
            self.peers[0] = socket.socket(socket.AF_UNIX)
            while True:
                try:
                    self.peers[0].connect(address)
                    break
                except OSError:
                    time.sleep(0.002)
            self.peers[0].sendall(struct.pack("q", rank))

    @staticmethod
    def _take(peer: socket.socket, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = peer.recv(min(size - len(data), 1 << 20))
            if not part:
                raise ConnectionError("a worker is gone")
            data += part
        return bytes(data)

    def _send(self, peer: int, data: bytes) -> None:
        self.peers[peer].sendall(struct.pack("q", len(data)) + data)

    def _receive(self, peer: int) -> bytes:
        return self._take(self.peers[peer], struct.unpack("q", self._take(self.peers[peer], 8))[0])

    def _all(self, data: bytes) -> list[bytes]:
        if self.rank:
            self._send(0, data)
            return [self._receive(0) for _ in range(self.size)]
        parts = [data, *(self._receive(peer) for peer in range(1, self.size))]
        for peer in range(1, self.size):
            for part in parts:
                self._send(peer, part)
        return parts

    def _post(self, sends: Sequence[PeerTensor], receives: Sequence[PeerTensor]) -> Request:
        for peer, x in sends:
            self._send(peer, x.numpy().tobytes())
        for peer, x in receives:
            x.copy_(torch.frombuffer(bytearray(self._receive(peer)), dtype=x.dtype))
        return _Done()

    def _copy_from(self, x: Tensor, root: int, team: Team) -> None:
        x.copy_(torch.frombuffer(bytearray(self._all(x.numpy().tobytes())[root]), dtype=x.dtype))

    def _all_max(self, values: np.ndarray, team: Team) -> None:
        values[:] = np.max([np.frombuffer(part, dtype=np.int64) for part in self._all(values.tobytes())], axis=0)

    def _gather_bytes(self, data: bytes, sizes: list[int], team: Team) -> list[bytes]:
        return self._all(data)

    def _all_sum(self, x: Tensor, team: Team) -> None:
        raise NotImplementedError

    def _sum_to(self, x: Tensor, root: int, team: Team) -> None:
        raise NotImplementedError

    def abort(self, code: int = 1) -> None:
        os._exit(code)


class _Done:
    def wait(self) -> None:
        return None


def state(P: Partition, version: int) -> dict[str, Any]:
    return {
        "split": split(torch.full(SPLIT, float(version)), line(P, SPLIT), P.rank),
        "same": torch.full(SAME, float(version)),
        "more": [torch.full((10,), float(version)), version],
        "own": checkpoint.PerWorker(version),
        "version": version,
    }


OPERATIONS = ("create", "write", "sync", "sync_folder", "rename", "make_folder", "remove")


def die_at(call: int, after: bool) -> None:
    """From now on, kill this process before or after its so-manieth call that changes a file."""
    left = [call]

    def deadly(real: Any) -> Any:
        def operation(*args: Any) -> Any:
            left[0] -= 1
            this_one = left[0] == 0
            if this_one and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*args)
            if this_one:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return operation

    for name in OPERATIONS:
        setattr(disk, name, deadly(getattr(disk, name)))


Death = tuple[int, int, bool]
"""Who dies, at which call, and whether after it."""


def work(rank: int, size: int, folder: Path, variant: str, report: int, death: Death | None = None) -> None:
    """Save version after version; the first worker reports each that is safe."""
    P = world(StarTransport(rank, size, str(folder / "listener")))
    series = checkpoint.Series(folder / "series", keep_last=2, P=P)
    for version in range(1, 1_000_000):
        if variant == "replace":
            checkpoint.save(folder / "c", state(P, version), P)
        elif variant == "series":
            series.save(state(P, version), step=version)
        else:
            pending = checkpoint.async_save(folder / "c", state(P, version), P)
            assert pending is not None
            pending.wait()
        if rank == 0:
            os.write(report, struct.pack("q", version))
        if death is not None and version == 1 and death[0] == rank:
            die_at(*death[1:])
        if death is not None and version == 2:
            os._exit(0)  # it has outlived the last call


def version_of(path: Path) -> int:
    """The version of a committed checkpoint, after checking that all of it is of that version."""
    checkpoint.verify(path)
    found = checkpoint.load(path)
    version = found["version"]
    for key in ("split", "same"):
        assert torch.equal(found[key], torch.full_like(found[key], float(version))), (path, key)
    assert torch.equal(found["more"][0], torch.full((10,), float(version)))
    assert found["more"][1] == version
    assert set(found["own"]) == {version}
    return version


MOMENTS = {"before": (False,), "everywhere": (False, True)}


def trial(folder: Path, seed: int) -> str:
    choice = random.Random(seed)
    variant = VARIANTS[seed % len(VARIANTS)]
    size = choice.choice([1, 2, 3, 4])
    folder.mkdir()
    workers, ear = forked(size, folder, variant)
    reported = struct.unpack("q", os.read(ear, 8))[0]
    time.sleep(choice.uniform(0, 0.08))
    os.kill(workers[choice.randrange(size)], signal.SIGKILL)
    ended(workers)
    check(folder, variant, last_report(ear, reported))
    shutil.rmtree(folder)
    return variant


def at_each_call(folder: Path, variants: Sequence[str], moments: Sequence[bool]) -> int:
    """Kill each of two workers before (or after: True) each of its calls in the second save, until it survives that."""
    kills = 0
    for variant in variants:
        for rank in range(2):
            for call in range(1, 1000):
                alive = False
                for after in moments:
                    place = folder / f"{variant}-{rank}-{call}-{after}"
                    place.mkdir()
                    workers, ear = forked(2, place, variant, (rank, call, after))
                    alive = 0 in ended(workers)
                    kills += not alive
                    check(place, variant, last_report(ear, 0))
                    shutil.rmtree(place)
                if alive:
                    break
    return kills


def forked(size: int, folder: Path, variant: str, death: Death | None = None) -> tuple[list[int], int]:
    """The workers' processes, and where the first one reports what is safe."""
    ear, mouth = os.pipe()
    workers = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(ear)
                sys.stderr = open(os.devnull, "w")  # noqa: SIM115
                work(rank, size, folder, variant, mouth, death)
            finally:
                os._exit(1)
        workers.append(pid)
    os.close(mouth)
    return workers, ear


def ended(workers: list[int]) -> list[int]:
    """How the workers have ended: one was killed, the others must notice by themselves."""
    begin = time.monotonic()
    results = []
    for pid in workers:
        while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            assert time.monotonic() - begin < 30, "a survivor hangs"
            time.sleep(0.002)
        results.append(found[1])
    return results


def last_report(ear: int, reported: int) -> int:
    while data := os.read(ear, 8):
        reported = struct.unpack("q", data)[0]
    os.close(ear)
    return reported


def check(folder: Path, variant: str, reported: int) -> None:
    series = checkpoint.Series(folder / "series", keep_last=2)
    if variant == "series":
        steps = series.steps()
        assert all(version_of(series.path(step)) == step for step in steps)
        latest = series.latest()
        assert latest in (reported, reported + 1), (latest, reported)
        series.save({"version": 0}, step=reported + 1)
        assert checkpoint.load(series.path(reported + 1))["version"] == 0
        path = series.path(reported + 1)
    else:
        path = folder / "c"
        assert version_of(path) in (reported, reported + 1), (version_of(path), reported)
        checkpoint.save(path, {"version": 0})
        assert checkpoint.load(path)["version"] == 0
    names = sorted(item.name for item in path.iterdir())
    assert names == [".lock", names[1], "manifest.json"] or names == [".lock", "manifest.json"], names


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[2] in MOMENTS:
        print(f"{at_each_call(Path(sys.argv[1]), sys.argv[3:], MOMENTS[sys.argv[2]])} kills survived")
        sys.exit()
    place, first, trials = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    done = [trial(place / f"trial{seed}", seed) for seed in range(first, first + trials)]
    print(f"{len(done)} kills survived: {', '.join(f'{done.count(v)} {v}' for v in VARIANTS)}")
