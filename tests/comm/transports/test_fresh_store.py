"""A store that torchrun keeps for all starts of a job: what earlier ones have written is not read again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from gridwise.comm.transports.fresh_store import fresh, may_be_used
from gridwise.errors import TransportError


def test_it_is_asked_for_only_where_torchrun_starts_again() -> None:
    assert not may_be_used({})
    assert not may_be_used({"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "0"})
    assert not may_be_used({"TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_MAX_RESTARTS": "3"})
    assert may_be_used({"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "3"})


def test_each_start_has_keys_of_its_own() -> None:
    """Also after a start to which only some workers came, and on another number of workers."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    clients = [dist.TCPStore("127.0.0.1", server.port, timeout=timedelta(seconds=60)) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        for size, coming in ((3, 3), (3, 2), (3, 3), (4, 4), (2, 1), (2, 2), (1, 1)):
            calls = [
                threads.submit(fresh, clients[rank], rank, size, 60.0 if coming == size else 0.3)
                for rank in reversed(range(coming))
            ]
            if coming < size:
                for call in calls:
                    with pytest.raises(TransportError, match=f"not all of the {size} workers"):
                        call.result()
                continue
            stores = [call.result() for call in calls]
            assert not stores[0].check(["key"])
            stores[0].set("key", str(size))
            assert {store.get("key") for store in stores} == {str(size).encode()}
