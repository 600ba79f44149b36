"""Checkpoints and arrays in S3: a server of moto in a process of its own, reached with s3fs."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import h5py
import numpy as np
import pytest
import torch
import zarr

import gridwise
from gridwise import checkpoint
from gridwise.data import BlockDataset, BlockLoader
from gridwise.errors import CheckpointDamaged, CheckpointError, CheckpointNotFound, DataError

s3fs = pytest.importorskip("s3fs", reason="pip install -e '.[integrations]'")

pytestmark = pytest.mark.integrations

SERVER = {"AWS_ACCESS_KEY_ID": "anyone", "AWS_SECRET_ACCESS_KEY": "anything", "AWS_DEFAULT_REGION": "us-east-1"}


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """The address of a server that has one bucket, `bucket`."""
    import boto3

    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urlopen(f"{address}/moto-api/").close()
                break
            except OSError:
                assert time.monotonic() < deadline, "moto's server does not answer"
                time.sleep(0.1)
        client = boto3.client(
            "s3",
            endpoint_url=address,
            aws_access_key_id="anyone",
            aws_secret_access_key="anything",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="bucket")
        yield address
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as address, pytest.MonkeyPatch.context() as patch:
        for name, value in {**SERVER, "AWS_ENDPOINT_URL": address}.items():
            patch.setenv(name, value)
        yield "s3://bucket"


def state(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(1000, 3000)  # 12 MB: more than one part of an upload
    return {"model": model, "optim": torch.optim.SGD(model.parameters()), "step": seed}


def test_save_and_load(s3: str) -> None:
    saved, into = state(1), state(2)
    checkpoint.save(f"{s3}/one", saved)
    checkpoint.load(f"{s3}/one", into)
    assert torch.equal(into["model"].weight, saved["model"].weight)
    checkpoint.async_save(f"{s3}/one", state(3)).wait()
    assert checkpoint.load(f"{s3}/one", state(2))["step"] == 3
    assert len(checkpoint.verify(f"{s3}/one").files) == 1
    assert len(s3fs.S3FileSystem().find("bucket/one")) == 2, "the data that was replaced is gone"


def test_a_series(s3: str) -> None:
    series = checkpoint.Series(f"{s3}/run", keep_last=2)
    with pytest.raises(CheckpointNotFound):
        series.load({})
    for step in range(4):
        series.save({"step": step, "x": torch.full((4,), step)}, step=step)
    assert series.steps() == [2, 3]
    assert series.load({"step": 0}) == 3


def test_damage_and_what_is_missing(s3: str) -> None:
    checkpoint.save(f"{s3}/bad", {"x": torch.ones(1000)})
    store = s3fs.S3FileSystem()
    (name,) = (name for name in store.find("bucket/bad") if name.endswith("w0.safetensors"))
    data = store.cat_file(name)
    store.pipe_file(name, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CheckpointDamaged, match=r"s3://bucket/bad is damaged"):
        checkpoint.load(f"{s3}/bad")
    with pytest.raises(CheckpointNotFound, match="s3://bucket/nothing"):
        checkpoint.load(f"{s3}/nothing")
    with pytest.raises(CheckpointError, match="s3://nobucket/run"):
        checkpoint.load("s3://nobucket/run")


@pytest.mark.parametrize("name", ["a.npy", "a.zarr", "a.h5"])
def test_arrays(s3: str, name: str, tmp_path: Path) -> None:
    """Each worker fetches its block; errors name the address."""
    whole = np.random.default_rng(0).normal(size=(3, 20, 30)).astype("f4")
    if name == "a.npy":
        np.save(tmp_path / name, whole)
    elif name == "a.zarr":
        zarr.create_array(tmp_path / name, shape=whole.shape, chunks=(1, 10, 10), dtype="f4")[:] = whole
    else:
        with h5py.File(tmp_path / name, "w") as file:
            file["images"] = whole
    s3fs.S3FileSystem().put(str(tmp_path / name), f"bucket/data/{name}", recursive=True)
    environment = {key: os.environ[key] for key in (*SERVER, "AWS_ENDPOINT_URL")}
    first, second = gridwise.launch(blocks_of, environment, f"{s3}/data/{name}", workers=2)
    assert np.array_equal(np.concatenate([first, second], axis=2), whole)
    with pytest.raises(DataError, match=f"{s3}/data/nothing"):
        gridwise.data.open_array(f"{s3}/data/nothing.npy")


def blocks_of(environment: dict[str, str], address: str) -> np.ndarray:
    os.environ.update(environment)
    loader = BlockLoader(BlockDataset(address, (1, 1, 2)), batch_size=2)
    return np.concatenate(list(loader))


def test_processes(s3: str) -> None:
    environment = {name: os.environ[name] for name in (*SERVER, "AWS_ENDPOINT_URL")}
    gridwise.launch(saved_and_loaded, environment, f"{s3}/two", workers=2)


def saved_and_loaded(environment: dict[str, str], path: str) -> None:
    os.environ.update(environment)
    checkpoint.save(path, {"own": checkpoint.PerWorker(torch.full((5,), gridwise.world().rank))})
    own = checkpoint.PerWorker(torch.zeros(5, dtype=torch.int64))
    checkpoint.async_save(f"{path}/again", checkpoint.load(path, {"own": own})).wait()
    assert own.value.tolist() == [gridwise.world().rank] * 5
