"""Workers of one machine, as threads of this process: they share a segment and nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from gridwise.comm.node.node import Node
from gridwise.comm.node.segment import Offer


def crew(n: int, body: Callable[[Node, int], Any], ranks: list[int] | None = None) -> list[Any]:
    """What `body(node, rank)` returns on each of `n` workers."""
    ranks = ranks or list(range(n))
    offer = Offer.make(n)
    offer.close()
    places = {rank: place for place, rank in enumerate(ranks)}
    nodes = {rank: Node(offer.segment, places, rank, dict.fromkeys(ranks, os.getpid()), 0) for rank in ranks}
    found: dict[int, Any] = {}
    failed: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            found[rank] = body(nodes[rank], rank)
        except BaseException as error:
            failed.append(error)
            for node in nodes.values():
                node.cut()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a worker hangs"
    if failed:
        raise failed[0]
    return [found[rank] for rank in ranks]
