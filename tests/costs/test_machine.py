"""Machines: read from files that nobody trusts, measured, and what a step takes on them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import gridwise
from gridwise.costs.machine import SHIPPED, find_machine, read_machine
from gridwise.errors import PartitionError
from gridwise.memory_sizes import number_of_bytes
from gridwise.planning.calibrate import NARROW, WIDE, _row_columns
from gridwise.planning.recorder import LINE, bytes_of

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
        (('memory = "79GiB"', 'memory = "many"'), "no number of bytes"),
        (("[flops.matmul]", "[flops.other]"), "needs float32 of each of conv, matmul"),
        (("name", "= name"), "cannot be read"),
        (("workers_per_node = 8", "workers_per_node = 0.5"), "`workers_per_node` .=0.5. has to be a whole number"),
        (('memory = "79GiB"', 'memory = "0.5"'), "no number of bytes"),
        (("overlap = 0.0", "overlap = 0.0\nrow_colums = 5.0"), "'row_colums' is not known"),
        (("[inside]", "[inside]\nlatencey = 1.0"), "'latencey' is not known"),
        (("[flops.conv]", "[flops.convolution]\nfloat32 = 1.0\n[flops.conv]"), "'convolution' is not known"),
        (("bfloat16 =", "bflaot16 ="), "'bflaot16' is no dtype of torch"),
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


def test_waiting_is_that_of_the_average_worker_and_not_of_the_average_role():
    model, grid, shape = torch.nn.Conv2d(1, 4, 3), (1, 1, 1, 64), (1, 1, 64, 640)
    by_roles = gridwise.plan(model, grid, shape, machine="epyc-7763-node")
    assert len(by_roles.workers) < 5
    every = gridwise.plan(model, grid, shape, machine="epyc-7763-node", workers=range(64))
    assert by_roles.time.seconds == pytest.approx(every.time.seconds)
    assert by_roles.time.waiting == pytest.approx(every.time.waiting)


def test_what_may_be_left_out_of_a_file(tmp_path):
    plain = find_machine("epyc-7763-node")
    assert (plain.device, plain.row_columns, plain.inside.exchange, plain.inside.sum_latency) == ("cpu", 0.0, 0.0, None)
    inside = replace(plain.inside, exchange=2e-5, sum_latency=3e-5, sum_bandwidth=4e9)
    full = replace(plain, inside=inside, row_columns=5.5, device="cuda")
    path = tmp_path / "full.toml"
    path.write_text(full.as_toml())
    assert read_machine(path) == full
    for wrong in ('device = "tpu"', "row_columns = -1"):
        path.write_text(re.sub(rf"{wrong.split()[0]} = .*", wrong, full.as_toml()))
        with pytest.raises(PartitionError, match="cannot be read"):
            read_machine(path)


def seconds_of(machine, model, grid, shape, part):
    layers = gridwise.plan(model, grid, shape, machine=machine).time.layers
    return sum(getattr(row, part) for row in layers if row.phase == "forward" and row.layer != "agreement")


def test_an_exchange_is_paid_once_whatever_it_carries():
    plain = find_machine("epyc-7763-node")
    slow = replace(plain, workers_per_node=4, inside=replace(plain.inside, exchange=1.0))
    model = torch.nn.Conv2d(1, 1, 3, padding=1, bias=False)
    seconds = seconds_of(slow, model, (1, 1, 4, 1), (1, 1, 64, 64), "communication")
    assert seconds == pytest.approx(1.0 + 2 * (plain.inside.latency + 64 * 4 / plain.inside.bandwidth))


def test_sums_may_be_slower_than_messages():
    plain = find_machine("epyc-7763-node")
    slow = replace(plain, workers_per_node=4, inside=replace(plain.inside, sum_latency=1.0))
    times = [
        seconds_of(machine, torch.nn.BatchNorm2d(4), (1, 1, 4, 1), (2, 4, 8, 8), "communication")
        for machine in (slow, replace(plain, workers_per_node=4))
    ]
    assert times[0] > 2 * 2  # there and back, two steps each
    assert times[1] < 0.01


def test_short_rows_and_channels_that_fill_no_vector_take_longer():
    plain = replace(find_machine("epyc-7763-node"), call_overhead=1e-30, memory_bandwidth=1e30)
    rough = replace(plain, row_columns=8.0)
    wide, narrow = (2, 16, 16, 64), (2, 16, 64, 16)

    def compute(machine, channels, shape):
        return seconds_of(machine, torch.nn.Conv2d(16, channels, 3, padding=1), (1, 1, 1, 1), shape, "compute")

    assert compute(plain, 16, wide) == pytest.approx(compute(plain, 16, narrow))
    assert compute(rough, 16, wide) == pytest.approx(compute(plain, 16, wide) * (1 + 8 / 64))
    assert compute(rough, 16, narrow) == pytest.approx(compute(plain, 16, narrow) * (1 + 8 / 16))
    assert compute(plain, 8, wide) == pytest.approx(compute(plain, 16, wide))
    assert compute(plain, 3, wide) == pytest.approx(compute(plain, 16, wide) * 3 / 16)


def test_small_convolutions_of_one_sample_are_unrolled():
    """Torch's own rule on the CPU: up to 20480 elements of the first four dims, and windows of at most three columns."""
    plain = replace(find_machine("epyc-7763-node"), call_overhead=1e-30, memory_bandwidth=1e30)
    slow = replace(plain, unroll_seconds=1e-6)
    model = torch.nn.Conv3d(4, 2, 3, padding=1)

    def more(*shape):
        return seconds_of(slow, model, (1,) * 5, shape, "compute") - seconds_of(
            plain, model, (1,) * 5, shape, "compute"
        )

    assert more(1, 4, 8, 8, 8) == pytest.approx(1e-6 * 4 * 27 * 8**3)
    assert more(2, 4, 8, 8, 8) == 0
    assert more(1, 4, 72, 72, 4) == 0


def test_what_a_row_costs_is_found_from_two_widths():
    for columns in (0.0, 3.0, 20.0):
        slower = (1 + columns / NARROW) / (1 + columns / WIDE)
        assert _row_columns(slower) == pytest.approx(columns)


def test_what_lies_apart_is_read_in_lines():
    x = torch.empty(4, 32, 32, device="meta")
    assert bytes_of([x], []) == 4 * 32 * 32 * 4
    assert bytes_of([x.narrow(1, 0, 2)], []) == 4 * 2 * 32 * 4
    assert bytes_of([x.narrow(2, 0, 1)], []) == 4 * 32 * LINE
    assert bytes_of([x.transpose(1, 2)], []) == x.nbytes
    assert bytes_of([torch.empty(1, device="meta").expand(100)], []) == 4
