"""The addresses at which the other workers of a job can reach this machine."""

from __future__ import annotations

import contextlib
import json
import os
import socket

LOOPBACK = "127.0.0.1"


def described() -> bytes:
    """This worker's machine and network, and its addresses, the likeliest first, encoded for worker 0."""
    network = ""
    with contextlib.suppress(OSError):
        network = os.readlink("/proc/self/ns/net")  # containers on one machine may have separate networks
    return json.dumps([f"{socket.gethostname()} {network}", _addresses()]).encode()


def addresses_for(everyone: list[bytes], used: list[str]) -> list[str]:
    """The addresses at which worker 0 listens: the loopback if all workers are on its machine, else those the job uses.

    `everyone` holds the `described` bytes of all workers, worker 0's first; `used` are the local addresses of connections
    to them, if the transport knows any. Without those, the addresses from which this machine reaches the others are used.
    """
    (here, mine), *others = (json.loads(said) for said in everyone)
    far = [addresses for place, addresses in others if place != here]
    if not far:
        return [LOOPBACK]
    outside = [address for address in used if not address.startswith("127.") and address != "::1"]
    if not outside:
        routes = (_route(address) for addresses in far for address in addresses[:1])
        outside = [address for address in routes if address and not address.startswith("127.")]
    return list(dict.fromkeys(outside or mine[:1] or [socket.gethostname()]))


def listen(hosts: list[str]) -> list[socket.socket]:
    """Listening sockets at these addresses, all on the same port."""
    for _ in range(20):
        found: list[socket.socket] = []
        try:
            for host in hosts:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                port = found[0].getsockname()[1] if found else 0
                found.append(socket.create_server((host, port), family=family, backlog=1024))
            return found
        except OSError:  # the port is taken at another address
            for each in found:
                each.close()
            if len(found) == 0:
                raise
    raise OSError(f"no port is free at all of {', '.join(hosts)}")


def _addresses() -> list[str]:
    found = []
    if (outside := _route("192.0.2.1")) is not None:
        found.append(outside)
    with contextlib.suppress(OSError):
        found += socket.gethostbyname_ex(socket.gethostname())[2]
    return [address for address in dict.fromkeys(found) if not address.startswith("127.")]


def _route(address: str) -> str | None:
    """The local address from which `address` is reached; nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])
    return None
