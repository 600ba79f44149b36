"""Blocks of torch's own distributed tensors, and its checkpoints read whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import save

from gridwise.testing import workers
from gridwise.torch_internals.distributed import DTensor, ShardedTensor, local_part, read_whole


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_is_read_without_knowing_what_it_holds(tmp_path: Path) -> None:
    save({"a": torch.ones(2), "b": {"c": 3}}, checkpoint_id=tmp_path, no_dist=True)
    state = read_whole(tmp_path)
    assert torch.equal(state["a"], torch.ones(2))
    assert state["b"] == {"c": 3}


@workers(2, transports=("gloo",))
def test_the_part_of_a_worker_and_where_it_starts() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    x = distribute_tensor(torch.arange(5.0), init_device_mesh("cpu", (2,)), [Shard(0)])
    assert isinstance(x, DTensor)
    rank = torch.distributed.get_rank()
    assert local_part(x) == (((3,), (0,)), ((2,), (3,)))[rank]
    assert x.to_local().tolist() == ([0, 1, 2] if rank == 0 else [3, 4])
    assert {"local_shards", "metadata"} <= set(dir(ShardedTensor))
