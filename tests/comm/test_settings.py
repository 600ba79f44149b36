"""Variables of the environment: a word that means nothing is refused by a worker, and by who would start workers."""

from __future__ import annotations

import pytest

from gridwise.comm.launching import find
from gridwise.comm.launching.pool import Pool
from gridwise.comm.settings import MPI_SIZES, RANKS, SWITCHES, is_on, launched_number, timeout
from gridwise.errors import PartitionError, TransportError


@pytest.mark.parametrize("text", ["60s", "10m", "abc", "0", "-3", "", "nan", "inf"])
def test_a_timeout_is_a_number_of_seconds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDWISE_TIMEOUT", text)
    with pytest.raises(PartitionError, match="number of seconds greater than 0, without a unit") as caught:
        timeout()
    assert "fix: " in str(caught.value)
    refused("GRIDWISE_TIMEOUT")


@pytest.mark.parametrize("text", ["no", "0", "of", ""])
@pytest.mark.parametrize("variable", SWITCHES)
def test_a_switch_is_on_or_off(variable: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, text)
    refused(rf"`{variable}` \(={text!r}\) must be 'on' or 'off'")


@pytest.mark.parametrize(("text", "on"), [("on", True), ("Off", False), ("OFF", False)])
def test_the_words_of_a_switch(text: str, on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDWISE_WATCH", text)
    assert is_on("GRIDWISE_WATCH") == on


def test_a_transport_is_one_of_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDWISE_TRANSPORT", "glue")
    with pytest.raises(TransportError, match="'auto', 'torch', 'gloo', 'mpi' or 'solo'"):
        find.find()
    monkeypatch.setenv("GRIDWISE_TRANSPORT", "auto")
    for variable in ("RANK", "WORLD_SIZE", *MPI_SIZES):
        monkeypatch.delenv(variable, raising=False)
    assert find.find().name == "solo"


@pytest.mark.parametrize("name", RANKS)
def test_the_rank_of_every_launcher(name: str) -> None:
    assert launched_number(RANKS, {name: "3"}) == 3
    assert launched_number(RANKS, {"SLURM_PROCID": "0", name: "3"}) == 3 or name == "SLURM_PROCID"
    assert launched_number(RANKS, {name: ""}) is None
    assert launched_number(RANKS, {name: "+3"}) is None


def refused(words: str) -> None:
    with pytest.raises(PartitionError, match=words):
        find.find()
    with pytest.raises(PartitionError, match=words), Pool(2, "gloo") as pool:
        pool.run(print)
