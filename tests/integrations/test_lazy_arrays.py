"""Arrays of dask and xarray as samples: only the blocks are computed, dims are taken by name, masks are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gridwise
from gridwise.data import BlockDataset, BlockLoader
from gridwise.errors import DataError

pytestmark = pytest.mark.integrations

da = pytest.importorskip("dask.array", reason="pip install -e '.[integrations]'")
xr = pytest.importorskip("xarray", reason="pip install -e '.[integrations]'")
WHOLE = np.random.default_rng(0).normal(size=(5, 2, 12, 16)).astype("f4")


def test_dask_computes_only_the_chunks_of_a_block() -> None:
    computed = []

    def noted(block: np.ndarray, block_info: dict | None = None) -> np.ndarray:
        if block_info:
            computed.append(block_info[0]["chunk-location"])
        return block * 2

    array = da.from_array(WHOLE, chunks=(1, 2, 6, 8)).map_blocks(noted, dtype="f4")
    dataset = BlockDataset(array, (1, 1, 1, 1))
    computed.clear()
    source = dataset.reader.fields[0].samples.source
    out = np.empty((1, 2, 6, 4), "f4")
    source.read(np.s_[3:4, 0:2, 6:12, 2:6], out)
    assert np.array_equal(out, WHOLE[3:4, :, 6:, 2:6] * 2)
    assert computed == [(3, 0, 1, 0)]
    assert np.array_equal(np.concatenate(list(BlockLoader(dataset, batch_size=2, readers=2))), WHOLE * 2)


def test_dask_without_sizes_or_with_masks_is_refused() -> None:
    array = da.from_array(WHOLE, chunks=(1, 2, 6, 8))
    with pytest.raises(DataError, match="compute_chunk_sizes"):
        BlockDataset(array[array[:, 0, 0, 0] > 0], (1, 1, 1, 1))
    with pytest.raises(DataError, match="has a mask"):
        BlockDataset(da.ma.masked_greater(array, 0), (1, 1, 1, 1))
    with pytest.raises(DataError, match="cannot be sent to a process"):
        list(BlockLoader(BlockDataset(array, (1, 1, 1, 1)), batch_size=1, processes=True))


@pytest.mark.parametrize("lazy", [False, True])
def test_a_dim_of_xarray_by_its_name(lazy: bool) -> None:
    array = xr.DataArray(np.moveaxis(WHOLE, 0, 3), dims=("band", "y", "x", "time"), coords={"time": range(5)})
    array = array.chunk({"y": 5}) if lazy else array
    dataset = BlockDataset(array, (1, 1, 1, 1), halo=1, edges="zeros", sample_dim="time")
    found = np.concatenate(list(BlockLoader(dataset, batch_size=2)))
    assert np.array_equal(found, np.pad(WHOLE, ((0, 0), (0, 0), (1, 1), (1, 1))))
    with pytest.raises(DataError, match="is none of the dims"):
        BlockDataset(array, (1, 1, 1, 1), sample_dim="date")


def test_a_file_that_xarray_has_opened(tmp_path: Path) -> None:
    dataset = xr.Dataset({"t2m": (("time", "y", "x"), WHOLE[:, 0])})
    dataset.to_zarr(tmp_path / "era.zarr", zarr_format=2, consolidated=False)
    with xr.open_zarr(tmp_path / "era.zarr", consolidated=False) as opened:
        samples = BlockDataset(opened["t2m"], (1, 1, 1, 1), sample_dim="time", add_channel=True)
        assert np.array_equal(samples.read([4, 0]), WHOLE[[4, 0], :1])


def blocks(halo: int, edges: str) -> np.ndarray:
    array = xr.DataArray(da.from_array(WHOLE, chunks=(1, 2, 6, 8)), dims=("time", "band", "y", "x"))
    return np.asarray(BlockDataset(array, (1, 1, 1, 2), halo=halo, edges=edges).read([1]))


def test_workers_read_their_blocks_with_halos() -> None:
    first, second = gridwise.launch(blocks, 1, "clip", workers=2)
    assert np.array_equal(first, WHOLE[1:2, :, :, :9])
    assert np.array_equal(second, WHOLE[1:2, :, :, 7:])
    padded = np.pad(WHOLE[1:2], ((0, 0), (0, 0), (1, 1), (1, 1)))
    first, second = gridwise.launch(blocks, 1, "zeros", workers=2)
    assert np.array_equal(first, padded[..., :10])
    assert np.array_equal(second, padded[..., 8:])
