"""Whole training states: modules, optimisers, schedulers, generators, nested containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from training import Net, train, training

from gridwise import checkpoint


@pytest.mark.parametrize(
    ("optimiser", "options"),
    [
        (torch.optim.Adam, {"lr": 0.1, "amsgrad": True}),
        (torch.optim.AdamW, {"lr": torch.tensor(0.05), "foreach": False}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.RMSprop, {"lr": 0.01, "centered": True}),
        (torch.optim.Adagrad, {"lr": 0.01}),
    ],
    ids=["adam", "adamw", "sgd", "plain-sgd", "rmsprop", "adagrad"],
)
def test_a_resumed_run_is_the_run_that_never_stopped(
    tmp_path: Path, optimiser: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    state = training(optimiser, **options)
    train(state, 3)
    checkpoint.save(tmp_path / "c", state)
    expected = train(state, 4)
    fresh = training(optimiser, **options)
    train(fresh, 1)  # other values, another place in the schedule
    checkpoint.load(tmp_path / "c", fresh)
    assert fresh["step"] == 3
    assert fresh["net"].count == 3
    assert type(fresh["schedule"].milestones) is type(state["schedule"].milestones)
    assert train(fresh, 4) == expected


def test_the_names_are_those_of_the_module(tmp_path: Path) -> None:
    state = training(torch.optim.Adam)
    train(state, 1)
    checkpoint.save(tmp_path / "c", state)
    keys = checkpoint.read_manifest(tmp_path / "c").tensors
    assert "net/body.0.weight" in keys
    assert "opt/state/body.0.weight/exp_avg" in keys


def test_a_module_alone_and_into_a_plain_torch_model(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", nn.Linear(3, 2))
    net = nn.Linear(3, 2)
    checkpoint.load(tmp_path / "c", net)
    assert set(checkpoint.load(tmp_path / "c")) == {"weight", "bias"}
    assert torch.equal(checkpoint.load(tmp_path / "c")["weight"], net.weight)


def test_a_part_of_a_state_can_be_loaded(tmp_path: Path) -> None:
    state = training(torch.optim.Adam)
    train(state, 2)
    checkpoint.save(tmp_path / "c", state)
    net = Net()
    checkpoint.load(tmp_path / "c", {"net": net})
    assert torch.equal(net.tied, state["net"].tied)


def test_nested_containers_come_back(tmp_path: Path) -> None:
    array = np.arange(6.0).reshape(2, 3)
    state = {
        "list": [torch.ones(2), {"deep": (torch.zeros(1), "text")}],
        "plain": [1, [2, {"x": None}]],
        "empty": {},
        "nothing": [],
        7: {"#7": 1, "/": 2},
        "array": array.copy(),
        "number": np.float64(1.5),
        "size": torch.Size([2, 3]),
    }
    checkpoint.save(tmp_path / "c", state)
    found = checkpoint.load(tmp_path / "c")
    assert found["plain"] == state["plain"]
    assert found["empty"] == {}
    assert found["nothing"] == []
    assert found[7] == {"#7": 1, "/": 2}
    assert found["size"] == (2, 3)
    assert torch.equal(found["list"][0], torch.ones(2))
    assert found["list"][1]["deep"][1] == "text"
    into = {"list": [torch.zeros(2), {"deep": (torch.ones(1), None)}], "array": np.zeros((2, 3)), 7: None, "plain": ()}
    target, matrix = into["list"][0], into["array"]
    checkpoint.load(tmp_path / "c", into)
    assert torch.equal(target, torch.ones(2))
    assert np.array_equal(matrix, array)
    assert into["list"][1]["deep"][1] == "text"
    assert into[7] == {"#7": 1, "/": 2}
    assert into["plain"] == [1, [2, {"x": None}]]


def test_non_contiguous_and_odd_tensors_are_filled_in_place(tmp_path: Path) -> None:
    values = {
        "turned": torch.arange(12.0).view(3, 4).t(),
        "strided": torch.arange(20)[::3],
        "half": torch.randn(5).half(),
        "small float": torch.randn(4).to(torch.float8_e4m3fn),
        "exponents": torch.arange(4, dtype=torch.uint8).view(torch.float8_e8m0fnu),
        "pairs": torch.arange(6, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).view(2, 3).t(),
        "wide": torch.tensor([2**60], dtype=torch.uint64),
        "complex": torch.randn(3, dtype=torch.complex64).conj(),
        "scalar": torch.tensor(True),
    }
    checkpoint.save(tmp_path / "c", values)
    into = {key: torch.empty_like(value) for key, value in values.items()}
    into["turned"] = torch.zeros(4, 3)
    into["strided"] = torch.zeros(14, dtype=torch.int64)[::2]
    checkpoint.load(tmp_path / "c", into)
    for key, value in values.items():
        assert bytes(into[key].contiguous().view(-1).resolve_conj().view(torch.uint8).numpy()) == bytes(
            value.contiguous().view(-1).resolve_conj().view(torch.uint8).numpy()
        ), key
