"""Freed memory stays in a worker's process, ready for the next tensor, unless that is switched off."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import resource
import torch
from gridwise.comm.launching.malloc import keep_freed_memory

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(keep_freed_memory(), [page_faults() for _ in range(5)][-1])
"""


def after_some(setting: str) -> tuple[str, int]:
    """Whether the allocator was set, and the page faults of a tensor of 64 MiB, where some as large were freed before."""
    environment = {**os.environ, "GRIDWISE_MALLOC": setting, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    was_set, faults = done.stdout.split()
    return was_set, int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the allocator of glibc")
def test_the_next_tensor_takes_memory_that_was_freed() -> None:
    was_set, afresh = after_some("off")
    assert was_set == "False"
    if afresh < 1000:
        pytest.skip("this system maps memory in large pages: fresh memory costs nothing here")
    was_set, faults = after_some("on")
    assert was_set == "True"
    assert faults < 100
