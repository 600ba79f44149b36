"""Somebody on the same machine who means harm: `python stranger.py` attacks the ports that it reads, one per line.

Garbage, deeply nested brackets, huge lengths, senders that send a byte at a time, idle callers, floods. It knows nothing of
Gridwise, and runs as another user where it may. At the end it prints how often it has reached each port.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import sys
import threading
import time

MESSAGES = [
    b"[" * 100_000 + b"\n",
    b'{"say": "failed", "text": "harm"}\n' * 100,
    b"GET / HTTP/1.1\r\n\r\n",
    struct.pack("<Q", 2**63) + b"x" * 1000,
    struct.pack(">I", 2**31 - 1) + b"x" * 1000,
    struct.pack("<i", -1) * 1000,
    b"\0" * 100_000,
    b"cmd=abort exitcode=1\n",
    os.urandom(50_000),
]
IDLE = 100
"""Connections that are held open without a word, per port."""


reached: dict[int, int] = {}
"""How many connections were made, per port."""


def connected(port: int) -> socket.socket:
    caller = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    caller.settimeout(1.0)
    caller.connect(("127.0.0.1", port))
    reached[port] = reached.get(port, 0) + 1
    return caller


def harm(port: int, ended: threading.Event) -> None:
    """Try everything on one port until told to stop."""
    rng, idle = random.Random(port), list[socket.socket]()
    while not ended.is_set():
        with contextlib.suppress(OSError):
            caller = connected(port)
            kind = rng.random()
            if kind < 0.3 and len(idle) < IDLE:
                idle.append(caller)
                continue
            with caller:
                message = rng.choice(MESSAGES)
                if kind < 0.6:
                    for byte in message[:10]:
                        caller.sendall(bytes([byte]))
                        time.sleep(0.05)
                else:
                    caller.sendall(message)
        time.sleep(0.002)
    for each in idle:
        each.close()


def main() -> None:
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    ended, threads = threading.Event(), list[threading.Thread]()
    for line in sys.stdin:
        threads.append(threading.Thread(target=harm, args=(int(line), ended)))
        threads[-1].start()
    ended.set()
    for thread in threads:
        thread.join()
    print(json.dumps(reached))


if __name__ == "__main__":
    main()
