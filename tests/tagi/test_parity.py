"""Ten training steps equal those of the original, recorded by record_pytagi.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DATA = Path(__file__).parent / "data"
STEPS = 10


@dataclass
class Case:
    """A network, what is fed to it, and how its output is observed."""

    name: str
    build: Callable[[Any], Any]
    inputs: int
    outputs: int
    batch: int
    kind: str = "all"
    noise: float = 0.1
    seed: int = 0
    lazy: bool = False
    compat: str | None = None
    saved: bool = False
    smoothed: bool = False

    def observe(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        if self.kind == "indices":  # four distinct units of each sample, as the tree of ten classes has
            index = np.stack([rng.permutation(self.outputs)[:4] + 1 for _ in range(self.batch)])
            return rng.choice([-1.0, 1.0], index.size).astype(np.float32), index.reshape(-1).astype(np.int32)
        n = self.outputs // 2 if self.kind == "heteros" else self.outputs
        return rng.standard_normal(self.batch * n).astype(np.float32), np.zeros(0, np.int32)


def fnn(nn: Any) -> Any:
    return nn.Sequential(nn.Linear(20, 16), nn.MixtureReLU(), nn.Linear(16, 16), nn.MixtureReLU(), nn.Linear(16, 11))


def cnn(nn: Any) -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, in_width=8, in_height=8),
        nn.ReLU(),
        nn.AvgPool2d(2, 2),
        nn.Conv2d(4, 6, 3),
        nn.ReLU(),
        nn.Linear(24, 11),
    )


def cnn_batch_norm(nn: Any) -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, in_width=8, in_height=8),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AvgPool2d(2, 2),
        nn.Conv2d(4, 6, 3),
        nn.BatchNorm2d(6),
        nn.MixtureReLU(),
        nn.Linear(24, 11),
    )


def resnet(nn: Any) -> Any:
    def branch(cin: int, cout: int, stride: int) -> Any:
        first = nn.Conv2d(cin, cout, 3, stride=stride, padding=1, padding_type=2 if stride == 2 else 1, bias=False)
        rest = nn.BatchNorm2d(cout), nn.MixtureReLU(), nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        return nn.LayerBlock(first, *rest, nn.BatchNorm2d(cout))

    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, in_width=8, in_height=8, bias=False),
        nn.BatchNorm2d(4),
        nn.MixtureReLU(),
        nn.ResNetBlock(branch(4, 4, 1)),
        nn.MixtureReLU(),
        nn.ResNetBlock(branch(4, 6, 2), nn.LayerBlock(nn.Conv2d(4, 6, 2, stride=2, bias=False), nn.BatchNorm2d(6))),
        nn.MixtureReLU(),
        nn.AvgPool2d(4),
        nn.Linear(6, 5),
    )


def lstm(nn: Any) -> Any:
    return nn.Sequential(nn.LSTM(2, 4, 3), nn.LSTM(4, 4, 3), nn.Linear(12, 2))


def slstm(nn: Any) -> Any:
    return nn.Sequential(nn.SLSTM(2, 4, 1), nn.SLSTM(4, 4, 1), nn.SLinear(4, 1))


def heteros(nn: Any) -> Any:
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2), nn.EvenExp())


NETWORKS = [
    Case("fnn", fnn, inputs=20, outputs=11, batch=16, kind="indices", noise=0.01),
    Case("cnn", cnn, inputs=64, outputs=11, batch=4, kind="indices", lazy=True),
    Case("cnn_batch_norm", cnn_batch_norm, inputs=64, outputs=11, batch=4, kind="indices", lazy=True),
    Case("resnet", resnet, inputs=128, outputs=5, batch=4, lazy=True, saved=True),
    Case("lstm", lstm, inputs=6, outputs=2, batch=3, compat="cutagi"),
    Case("slstm", slstm, inputs=2, outputs=1, batch=1, compat="cutagi", smoothed=True),
    Case("heteros", heteros, inputs=3, outputs=2, batch=8, kind="heteros", compat="cutagi"),
]


def _state(recorded: Any, when: str) -> dict[str, tuple[np.ndarray, ...]]:
    names = {key.split("/")[1] for key in recorded if key.startswith(when + "/")}
    fields = ("mu_w", "var_w", "mu_b", "var_b")
    return {name: tuple(recorded[f"{when}/{name}/{field}"] for field in fields) for name in names}


@pytest.mark.parametrize("case", NETWORKS, ids=lambda case: case.name)
def test_ten_training_steps_equal_the_original(case: Case) -> None:
    import gridwise.tagi.nn as nn

    recorded = np.load(DATA / f"{case.name}.npz")
    net = case.build(nn)
    net.set_compat(case.compat)
    net.load_state_dict(_state(recorded, "before"))
    updater = nn.OutputUpdater(net.device)
    for step in range(STEPS):
        mu, var = net(recorded[f"x/{step}"])
        np.testing.assert_allclose(mu, recorded[f"mu/{step}"], rtol=2e-5, atol=1e-5)
        np.testing.assert_allclose(var, recorded[f"var/{step}"], rtol=2e-5, atol=1e-5)
        y = recorded[f"y/{step}"]
        noise = np.full(y.shape, case.noise, np.float32)
        if case.kind == "indices":
            index = recorded[f"index/{step}"]
            updater.update_using_indices(net.output_z_buffer, y, noise, index, net.input_delta_z_buffer)
        elif case.kind == "heteros":
            updater.update_heteros(net.output_z_buffer, y, net.input_delta_z_buffer)
        else:
            updater.update(net.output_z_buffer, y, noise, net.input_delta_z_buffer)
        net.backward()
        net.step()
    for name, fields in _state(recorded, "after").items():
        for mine, theirs in zip(net.pytagi_state_dict()[name], fields, strict=True):
            if mine or theirs.any():  # the original lists biases that a layer without does not have
                np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-5, err_msg=name)
    if case.smoothed:
        for mine, name in zip(net.smoother(), ("smoothed/mu", "smoothed/var"), strict=True):
            np.testing.assert_allclose(mine, recorded[name], rtol=2e-5, atol=1e-6)


def test_reads_and_writes_the_binary_file_of_the_original(tmp_path: Path) -> None:
    import gridwise.tagi.nn as nn

    recorded = np.load(DATA / "resnet.npz")
    net = resnet(nn)
    net.load(str(DATA / "resnet.bin"))
    for name, fields in _state(recorded, "after").items():
        for mine, theirs in zip(net.pytagi_state_dict()[name], fields, strict=True):
            if mine:
                np.testing.assert_array_equal(np.float32(mine), theirs)
    net.eval()
    net(recorded["x/0"])  # the descriptions in the file hold the sizes of the images
    net.save(str(tmp_path / "again.bin"))
    assert (tmp_path / "again.bin").read_bytes() == (DATA / "resnet.bin").read_bytes()
