"""Machines: read from files that nobody trusts, measured, and what a step takes on them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import gridwise
from gridwise.errors import PartitionError
from gridwise.planning.machine import SHIPPED, find_machine, number_of_bytes, read_machine

SHIPPED_NAMES = sorted(path.stem for path in SHIPPED.glob("*.toml"))


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_machines_that_are_shipped_say_where_their_numbers_are_from(name, tmp_path):
    machine = find_machine(name)
    assert not machine.measured
    assert len(machine.source) > 40
    (tmp_path / "again.toml").write_text(machine.as_toml())
    assert read_machine(tmp_path / "again.toml") == machine


def test_names_are_quoted(tmp_path):
    machine = replace(find_machine("nvidia-a100"), name='a "b" \\ c\nmeasured = true')
    (tmp_path / "odd.toml").write_text(machine.as_toml())
    assert read_machine(tmp_path / "odd.toml").name == 'a "b" \\ c measured = true'


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("memory_bandwidth = 1.0e12", "memory_bandwidth = -1"), "above 0"),
        (("overlap = 0.0", "overlap = 2"), "from 0 to 1"),
        (("[inside]", "[outside]"), "there is no 'inside'"),
        (('memory = "80GiB"', 'memory = "many"'), "no number of bytes"),
        (("[flops.matmul]", "[flops.other]"), "needs float32 of each of conv, matmul"),
        (("name", "= name"), "cannot be read"),
    ],
)
def test_a_file_that_is_wrong_is_an_error(change, problem, tmp_path):
    text = (SHIPPED / "nvidia-a100.toml").read_text()
    path = tmp_path / "machine.toml"
    path.write_text(text.replace(*change, 1))
    with pytest.raises(PartitionError, match=problem):
        find_machine(path)


def test_a_machine_that_nobody_knows_is_an_error():
    with pytest.raises(PartitionError, match=r"(?s)no machine that is known.*nvidia-a100"):
        gridwise.plan(torch.nn.ReLU(), (1, 2), (4, 4), machine="abacus")


@pytest.mark.parametrize(
    ("words", "size"), [("40GiB", 40 << 30), ("1.5 MB", 1_500_000), (7, 7), ("12", 12), ("2k", 2000)]
)
def test_sizes_in_words(words, size):
    assert number_of_bytes(words) == size


@pytest.mark.parametrize("words", ["", "GiB", "-1GiB", "0", -5, 1.5j])
def test_sizes_that_are_none(words):
    with pytest.raises(PartitionError, match="no number of bytes"):
        number_of_bytes(words)


def test_a_machine_twice_as_fast_takes_half_the_time():
    slow = replace(find_machine("epyc-7763-node"), call_overhead=1e-30, memory_bandwidth=1e30)
    fast = replace(slow, flops={kind: {d: 2 * rate for d, rate in of.items()} for kind, of in slow.flops.items()})
    model = torch.nn.Conv2d(4, 4, 3, padding=1)
    times = [gridwise.plan(model, (1, 1, 2, 1), (1, 4, 64, 64), machine=machine).time for machine in (slow, fast)]
    assert times[0].compute == pytest.approx(2 * times[1].compute)
    assert times[0].communication == times[1].communication
    operations = 2 * 4 * 4 * 9 * 32 * 64
    forward = next(row for row in times[0].layers if row.layer == "conv2d" and row.phase == "forward")
    assert forward.compute == pytest.approx(operations / slow.rate("conv", "float32"))


def test_halos_between_nodes_take_longer():
    near = replace(find_machine("nvidia-a100"), workers_per_node=4)
    far = replace(near, workers_per_node=1)
    model = torch.nn.Conv2d(1, 1, 3, padding=1, bias=False)
    halo = [gridwise.plan(model, (1, 1, 4, 1), (1, 1, 64, 64), machine=m).time.layers for m in (near, far)]
    seconds = [next(row.communication for row in rows if row.layer == "conv2d") for rows in halo]
    assert seconds == [2 * (link.latency + 64 * 4 / link.bandwidth) for link in (near.inside, near.between)]


def test_waiting_is_for_those_who_have_more_to_do():
    machine = find_machine("epyc-7763-node")
    even = gridwise.plan(torch.nn.ReLU(), (1, 2), (1, 1 << 20), machine=machine)
    odd = gridwise.plan(torch.nn.ReLU(), (1, 3), (1, 4), machine=machine)
    assert sum(row.waiting for row in even.time.layers if row.layer == "relu") == pytest.approx(0, abs=1e-12)
    assert sum(row.waiting for row in odd.time.layers if row.layer == "relu") > 0
