"""Series: the newest committed step is found, the rule of what is kept holds, partial ones are never listed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch
from crew import crew

from gridwise import checkpoint
from gridwise.checkpoint import Series, disk
from gridwise.checkpoint.writing.background import Pending
from gridwise.errors import CheckpointDamaged, CheckpointMismatch, CheckpointNotFound
from gridwise.partition import Partition


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_save_latest_load(tmp_path: Path) -> None:
    series = Series(tmp_path / "run", keep_last=2)
    assert series.latest() is None
    with pytest.raises(CheckpointNotFound, match="nothing has been saved there yet"):
        series.load({})
    assert series.load({"x": 1}, default=7) == 7
    for step in (10, 20, 30):
        series.save({"x": torch.full((2,), step)}, step=step)
    assert series.steps() == [20, 30]
    assert series.latest() == 30
    into = {"x": torch.zeros(2, dtype=torch.int64)}
    assert series.load(into) == 30
    assert series.load(into, step=20) == 20
    assert into["x"].tolist() == [20, 20]
    assert series.load(into, default=7) == 30
    with pytest.raises(CheckpointNotFound, match="step 10: there are 20, 30"):
        series.load(into, step=10, default=7)


def test_what_is_kept(tmp_path: Path) -> None:
    series = Series(tmp_path, keep_last=2, keep_every=4)
    for step in range(11):
        series.save({"step": step}, step=step)
    assert series.steps() == [0, 4, 8, 9, 10]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:010d}" for step in series.steps()]
    everything = Series(tmp_path / "all", keep_last=None)
    for step in range(5):
        everything.save({"step": step}, step=step)
    assert everything.steps() == list(range(5))


def test_left_overs_are_not_listed_and_go_with_the_next_save(tmp_path: Path) -> None:
    series = Series(tmp_path)
    series.save({"x": 1}, step=1)
    partial = series.path(2) / f"data-{'0' * 32}"
    partial.mkdir(parents=True)
    (partial / "w0.safetensors").write_bytes(b"half")
    assert series.latest() == 1
    series.save({"x": 2}, step=2)
    assert not partial.exists()
    assert series.latest() == 2


def test_a_damaged_step_names_the_others(tmp_path: Path) -> None:
    series = Series(tmp_path)
    for step in (1, 2):
        series.save({"x": torch.ones(1000) * step}, step=step)
    (file,) = series.path(2).glob("data-*/*")
    damage(file)
    into = {"x": torch.zeros(1000)}
    with pytest.raises(CheckpointDamaged) as caught:
        series.load(into)
    assert "other steps of this series: 1" in "".join(caught.value.__notes__)
    assert series.load(into, step=1) == 1


def test_in_the_background(tmp_path: Path) -> None:
    series = Series(tmp_path, keep_last=1)
    for step in range(4):
        series.async_save({"x": torch.full((100,), step)}, step=step)
    into = {"x": torch.zeros(100, dtype=torch.int64)}
    checkpoint.async_save(tmp_path / "other", {"x": 1}).wait()
    assert series.load(into) == 3
    series.prune()
    assert series.steps() == [3]


def test_on_several_workers(tmp_path: Path) -> None:
    def body(P: Partition) -> None:
        series = Series(tmp_path, keep_last=1, P=P)
        for step in range(3):
            series.save({"own": checkpoint.PerWorker(10 * step + P.rank)}, step=step)
        into = {"own": checkpoint.PerWorker(None)}
        assert series.load(into) == 2
        assert into["own"].value == 20 + P.rank

    crew(3, body)
    assert Series(tmp_path).steps() == [2]


@pytest.mark.parametrize("options", [{"keep_last": 0}, {"keep_every": -1}, {"keep_last": 1.5}])
def test_rules_that_make_no_sense(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(CheckpointMismatch, match="whole number"):
        Series(tmp_path, **options)
    with pytest.raises(CheckpointMismatch, match="step"):
        Series(tmp_path).save({}, step=-1)
    for call in (Series(tmp_path).save, Series(tmp_path).async_save):
        with pytest.raises(CheckpointMismatch, match=r"`step` \(=1000000000000000000\)"):
            call({}, step=10**18)
    Series(tmp_path).save({}, step=10**18 - 1)
    assert Series(tmp_path).latest() == 10**18 - 1


def test_the_step_in_flight_is_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is only started by `wait` stands for one that is slow."""
    series = Series(tmp_path)
    series.save({"x": torch.tensor(100)}, step=100)
    monkeypatch.setattr(Pending, "start", lambda self: None)
    pending = series.async_save({"x": torch.tensor(200)}, step=200)
    monkeypatch.setattr(pending._written, "wait", pending._run)
    into = {"x": torch.tensor(0)}
    assert series.load(into) == 200
    assert into["x"] == 200


def test_the_step_saved_last_is_kept(tmp_path: Path) -> None:
    series = Series(tmp_path, keep_last=2)
    for step in (100, 200, 300):
        series.save({"x": step}, step=step)
    series.save({"x": 50}, step=50)
    assert series.steps() == [50, 200, 300]
    assert series.prune() == []
    series.save({"x": 60}, step=60)
    assert series.steps() == [60, 200, 300]
    for step in (70, 80):
        series.async_save({"x": step}, step=step)
    assert series.load({"x": 0}, step=80) == 80
    assert series.steps() == [70, 80, 200, 300]
    series.save({"x": 400}, step=400)
    assert series.steps() == [300, 400]


def test_a_step_that_cannot_be_removed_is_not_returned(tmp_path: Path) -> None:
    series = Series(tmp_path, keep_last=None)
    for step in (1, 2, 3):
        series.save({"x": step}, step=step)
    with closing(disk.Lock(series.path(1))):
        assert Series(tmp_path, keep_last=1).prune() == [2]
    assert series.steps() == [1, 3]


def test_the_best_are_kept_as_well(tmp_path: Path) -> None:
    series = Series(tmp_path / "run", keep_last=1, keep_best=2, metric="loss")
    assert series.best() is None
    losses = [0.5, 0.2, float("nan"), 0.4, None, 0.3, 0.9, 0.9]
    for step, loss in enumerate(losses):
        series.save({"x": step}, step, metadata={"loss": loss, "note": "ok"})
    assert series.steps() == [1, 5, 7]
    assert series.best() == 1
    assert series.metadata(5) == {"loss": 0.3, "note": "ok"}
    again = Series(tmp_path / "run", keep_last=1, keep_best=1, metric="loss", mode="max")
    assert again.best() == 7, "read from the files"
    assert again.prune() == [1, 5]


def test_a_step_saved_again_has_its_new_metric(tmp_path: Path) -> None:
    series = Series(tmp_path, keep_last=1, keep_best=1, metric="loss")
    series.save({}, 0, metadata={"loss": 0.1})
    series.save({}, 1, metadata={"loss": 0.2})
    assert series.best() == 0
    series.async_save({}, 0, metadata={"loss": 0.3}).wait()
    assert series.best() == 1


def test_a_metric_is_a_number(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatch, match="needs a `metric`"):
        Series(tmp_path, keep_best=1)
    with pytest.raises(CheckpointMismatch, match="'min' or 'max'"):
        Series(tmp_path, metric="loss", mode="least")
    with pytest.raises(CheckpointMismatch, match="has no `metric`"):
        Series(tmp_path).best()
    series = Series(tmp_path, metric="loss")
    for metadata in (None, {"lost": 1}, {"loss": "1"}, {"loss": True}, {"loss": torch.ones(())}):
        with pytest.raises(CheckpointMismatch, match="no number 'loss', which is the `metric`"):
            series.save({}, 1, metadata=metadata)
    assert series.steps() == []


def test_metadata_are_plain_and_alike(tmp_path: Path) -> None:
    said = {"loss": float("inf"), "tags": ("a", 1), "when": None}
    checkpoint.save(tmp_path / "c", {"x": torch.ones(2)}, metadata=said)
    assert checkpoint.metadata(tmp_path / "c") == said
    assert "metadata: tags" in str(checkpoint.show(tmp_path / "c"))
    assert checkpoint.load(tmp_path / "c").keys() == {"x"}
    for wrong in ({"x": torch.ones(1)}, {1: 2}, [1]):
        with pytest.raises(CheckpointMismatch, match="metadata"):
            checkpoint.save(tmp_path / "c", {}, metadata=wrong)

    def differ(P: Partition) -> None:
        with pytest.raises(CheckpointMismatch, match="the first difference is 'metadata loss'"):
            checkpoint.save(tmp_path / "d", {}, P, metadata={"loss": P.rank})

    crew(2, differ)
