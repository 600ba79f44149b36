"""Record ten training steps of the original, to compare with: `python tests/tagi/record_pytagi.py tests/tagi/data`.

Needs `pytagi` (0.2.1) with the OpenMPI and NCCL libraries that it links; nothing else in the tests does. For each
network the file holds the initial parameters, the inputs and observations, the outputs of each step, and the final
parameters. The networks are those of `NETWORKS` in test_parity.py, layer by layer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from test_parity import NETWORKS, STEPS, Case


def record(case: Case, nn: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(case.seed)
    net = case.build(nn)
    net.set_threads(1)
    updater = nn.OutputUpdater("cpu")
    if case.smoothed:
        net.num_samples = STEPS
    out: dict[str, np.ndarray] = {}
    warm = rng.standard_normal(case.batch * case.inputs).astype(np.float32)
    if case.lazy:  # parameters of convolutions exist only after a forward pass; in eval mode it changes nothing else
        net.eval()
        net(warm)
        net.train()
    _note(out, "before", net.state_dict())
    for step in range(STEPS):
        x = rng.standard_normal(case.batch * case.inputs).astype(np.float32)
        y, index = case.observe(rng)
        noise = np.full(y.shape, case.noise, np.float32)
        mu, var = net(x)
        if case.kind == "indices":
            updater.update_using_indices(net.output_z_buffer, y, noise, index, net.input_delta_z_buffer)
        elif case.kind == "heteros":
            updater.update_heteros(net.output_z_buffer, y, net.input_delta_z_buffer)
        else:
            updater.update(net.output_z_buffer, y, noise, net.input_delta_z_buffer)
        net.backward()
        net.step()
        values = {"x": x, "y": y, "index": index, "mu": np.array(mu), "var": np.array(var)}
        out |= {f"{name}/{step}": value for name, value in values.items()}
    _note(out, "after", net.state_dict())
    if case.smoothed:
        mu, var = net.smoother()
        out |= {"smoothed/mu": np.array(mu), "smoothed/var": np.array(var)}
    if case.saved:
        path = Path(sys.argv[1]) / f"{case.name}.bin"
        net.save(str(path))
    return out


def _note(out: dict[str, np.ndarray], when: str, state: dict[str, tuple[list[float], ...]]) -> None:
    for name, fields in state.items():
        for field, values in zip(("mu_w", "var_w", "mu_b", "var_b"), fields, strict=True):
            out[f"{when}/{name}/{field}"] = np.array(values, np.float32)


def main(build: Callable[[], Any]) -> None:
    import pytagi

    pytagi.manual_seed(1)
    for case in NETWORKS:
        np.savez_compressed(Path(sys.argv[1]) / f"{case.name}.npz", **record(case, build()))
        print("recorded", case.name)


if __name__ == "__main__":
    import importlib

    main(lambda: importlib.import_module("pytagi.nn"))
