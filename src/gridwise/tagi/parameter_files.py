"""Reading and writing parameters in pytagi's formats: dictionaries of tuples, CSV files, binary files.

Layers are named as in the original: `Linear.0` is layer 0; inside the ResNetBlock at position 3, layer 1 of the main
block is `BatchNorm2d.main.3.1` (`BatchNorm2d.main.3` where the branch is that single layer), and layer 1 of the
shortcut `BatchNorm2d.shortcut.3.1`.

The binary file has, for every layer that is not an activation: the length of its description (8 bytes, little-endian),
the description, then mu_w, var_w, mu_b, var_b and, for BatchNorm2d, the running mean and variance, all float32. After
a LayerNorm that has been used, the original also writes the statistics of its last batch, a mean and a variance for
each sample. They are skipped; where they end is found by searching for the next layer's description.

Parameters that do not fit the network are refused before anything is changed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError
from .nn.activation import Activation
from .nn.base_layer import BaseLayer, ParametricLayer
from .nn.batch_norm import BatchNorm2d
from .nn.data_struct import as_tensor
from .nn.layer_block import LayerBlock, ResNetBlock
from .nn.layer_norm import LayerNorm

_CSV = {"mu_w": "_1_mw.csv", "var_w": "_2_Sw.csv", "mu_b": "_3_mb.csv", "var_b": "_4_Sb.csv"}
_FIELDS = tuple(_CSV)


def named_layers(layers: list[BaseLayer]) -> Iterator[tuple[str, ParametricLayer]]:
    """The layers with parameters, under pytagi's names."""
    for position, layer in enumerate(layers):
        yield from _named(layer, str(position))


def _named(layer: BaseLayer, where: str) -> Iterator[tuple[str, ParametricLayer]]:
    if isinstance(layer, ResNetBlock):
        for branch, child in (("main", layer.main_block), ("shortcut", layer.shortcut)):
            if child is not None:
                yield from _named(child, f"{branch}.{where}")
    elif isinstance(layer, LayerBlock):
        for position, child in enumerate(layer.layers):
            yield from _named(child, f"{where}.{position}")
    elif isinstance(layer, ParametricLayer):
        yield f"{layer.get_layer_name()}.{where}", layer
    else:
        for position, child in enumerate(layer.children_layers()):
            yield from _named(child, f"{where}.{position}")


def fields(layer: ParametricLayer) -> list[Tensor | None]:
    """mu_w, var_w, mu_b, var_b; None for the biases of a layer that has none."""
    return [getattr(layer, name) for name in _FIELDS]


def to_pytagi(layers: list[BaseLayer]) -> dict[str, tuple[list[float], ...]]:
    """{name: (mu_w, var_w, mu_b, var_b)} with flat lists, as pytagi's `state_dict()`."""
    return {
        name: tuple([] if t is None else t.detach().reshape(-1).tolist() for t in fields(layer))
        for name, layer in named_layers(layers)
    }


def is_pytagi(state: Mapping[str, Any]) -> bool:
    """Whether a dictionary is in pytagi's form: tuples or lists of four, rather than tensors."""
    return bool(state) and all(isinstance(value, tuple | list) and len(value) == 4 for value in state.values())


@torch.no_grad()
def from_pytagi(layers: list[BaseLayer], state: Mapping[str, Any]) -> None:
    """Load parameters in pytagi's form; names and sizes must agree."""
    mine = dict(named_layers(layers))
    if mine.keys() != state.keys():
        raise ArgumentError(
            f"load_state_dict: the names of the layers differ.\n  only here: {sorted(mine.keys() - state.keys())}\n"
            f"  only in the state: {sorted(state.keys() - mine.keys())}"
        )
    found = []
    for name, layer in mine.items():
        for field, target, given in zip(_FIELDS, fields(layer), state[name], strict=True):
            values = np.asarray(given, np.float64).reshape(-1)
            size = 0 if target is None else target.numel()
            if values.size != size and not (target is None and not values.any()):
                raise ArgumentError(
                    f"load_state_dict: {name}.{field} has {size} values here and {values.size} in the state."
                )
            if target is not None:
                found.append((target, values))
    _copy_into(found)


def _copy_into(found: list[tuple[Tensor, np.ndarray]]) -> None:
    for target, values in found:
        target.copy_(as_tensor(values, target).reshape(target.shape))


# ---- CSV -------------------------------------------------------------------------------------------------------------
def save_csv(layers: list[BaseLayer], prefix: str) -> None:
    """Write four files with one value per line, layer after layer, in full precision."""
    for field, suffix in _CSV.items():
        values = [getattr(layer, field) for _, layer in named_layers(layers)]
        flat = [v.detach().reshape(-1).cpu().double().numpy() for v in values if v is not None]
        digits = 17 if any(v is not None and v.dtype == torch.float64 for v in values) else 9
        np.savetxt(prefix + suffix, np.concatenate(flat) if flat else np.zeros(0), fmt=f"%.{digits}g")


@torch.no_grad()
def load_csv(layers: list[BaseLayer], prefix: str) -> None:
    """Read what `save_csv` wrote."""
    found: list[tuple[Tensor, np.ndarray]] = []
    for field, suffix in _CSV.items():
        tensors = [getattr(layer, field) for _, layer in named_layers(layers)]
        targets, values = [t for t in tensors if t is not None], _values(prefix + suffix)
        cuts = np.cumsum([t.numel() for t in targets])
        if values.size != (cuts[-1] if targets else 0):
            raise ArgumentError(
                f"{prefix + suffix}: {values.size} values found, {cuts[-1] if targets else 0} wanted: the file is of another "
                "network."
            )
        found += zip(targets, np.split(values, cuts[:-1]), strict=True) if targets else []
    _copy_into(found)


def _values(filename: str) -> np.ndarray:
    """The numbers in a file, one per line; none in an empty file."""
    return np.array(Path(filename).read_text().split(), np.float64)


# ---- binary ----------------------------------------------------------------------------------------------------------
def _stored(layers: list[BaseLayer]) -> Iterator[tuple[BaseLayer, list[Tensor]]]:
    for top in layers:
        for layer in top.leaves():
            if not isinstance(layer, Activation):
                tensors = [t for t in fields(layer) if t is not None] if isinstance(layer, ParametricLayer) else []
                if isinstance(layer, BatchNorm2d):
                    tensors += [layer.running_mean, layer.running_var]
                yield layer, tensors


def save_binary(layers: list[BaseLayer], filename: str) -> None:
    """Write pytagi's binary file."""
    with Path(filename).open("wb") as file:
        for layer, tensors in _stored(layers):
            info = layer.get_layer_info().encode()
            file.write(struct.pack("<Q", len(info)) + info)
            for tensor in tensors:
                file.write(tensor.detach().reshape(-1).cpu().float().numpy().astype("<f4").tobytes())


@torch.no_grad()
def load_binary(layers: list[BaseLayer], filename: str) -> None:
    """Read pytagi's binary file, whether the original or `save_binary` wrote it."""
    data, at, found = Path(filename).read_bytes(), 0, []
    stored = list(_stored(layers))
    for position, (layer, tensors) in enumerate(stored):
        name, at = _description(data, at, filename)
        if _kind(name) != _kind(layer.get_layer_info()):
            raise ArgumentError(f"{filename}: found layer {name} where {layer.get_layer_info()} was expected.")
        for tensor in tensors:
            if at + 4 * tensor.numel() > len(data):
                raise ArgumentError(f"{filename}: the file ends inside layer {name}.")
            found.append((tensor, np.frombuffer(data, "<f4", tensor.numel(), at)))
            at += 4 * tensor.numel()
        if isinstance(layer, LayerNorm):
            following = stored[position + 1][0] if position + 1 < len(stored) else None
            at = _after_statistics(data, at, following)
    if at != len(data):
        raise ArgumentError(f"{filename}: {len(data) - at} bytes are left over: the file is of another network.")
    _copy_into(found)
    for layer, _ in stored:
        if isinstance(layer, BatchNorm2d):
            layer.num_batches.fill_(1)


def _kind(description: str) -> str:
    return description.split("(")[0]


def _after_statistics(data: bytes, at: int, following: BaseLayer | None) -> int:
    """The byte where the statistics of a LayerNorm's last batch end; `at` if there are none."""
    if following is None:
        rest = np.frombuffer(data, "<f4", (len(data) - at) // 4, at)
        _, var = np.split(rest, 2) if rest.size % 2 == 0 else (rest, rest[:0])
        fits = (len(data) - at) % 8 == 0 and np.isfinite(rest).all() and (var >= 0).all()
        return len(data) if fits and _described(data, at) is None else at
    wanted = _kind(following.get_layer_info())
    places = range(at, len(data), 8)
    return next((place for place in places if _kind(_described(data, place) or "") == wanted), at)


def _described(data: bytes, at: int) -> str | None:
    """The description at byte `at`; None if there is none."""
    if at + 8 > len(data):
        return None
    (length,) = struct.unpack_from("<Q", data, at)
    text = data[at + 8 : at + 8 + length] if 0 < length <= 4096 else b""
    return text.decode() if len(text) == length and text.isascii() and b"(" in text else None


def _description(data: bytes, at: int, filename: str) -> tuple[str, int]:
    if at + 8 > len(data):
        raise ArgumentError(f"{filename}: the file ends where a layer was expected.")
    text = _described(data, at)
    if text is None:
        raise ArgumentError(f"{filename}: no description of a layer at byte {at}: the file is of another network.")
    return text, at + 8 + len(text)
