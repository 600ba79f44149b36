"""Helpers under pytagi's names: label encodings, image files, rolling windows, normalisation, schedules."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from ..errors import ArgumentError
from .hrc_softmax import class_probabilities, class_tree
from .nn.data_struct import HRCSoftmax as HRCSoftmax


class Utils:
    """Label encodings, file readers and rolling windows; the class has no state.

    Examples
    --------
    >>> gridwise.tagi.Utils().label_to_obs(np.array([0, 1]), 2)[1] > 0
    array([ True,  True])
    """

    # ---- labels -----------------------------------------------------------------------------------------------------
    def get_hierarchical_softmax(self, num_classes: int) -> HRCSoftmax:
        """The binary tree of `num_classes` classes."""
        return class_tree(num_classes)

    def label_to_obs(self, labels: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Turns (+1, -1) and nodes (counted from 1) of each label, both flat, and how many there are per label."""
        labels = _checked_labels(labels, num_classes)
        tree = class_tree(num_classes)
        obs, idx = np.reshape(tree.obs, (num_classes, -1)), np.reshape(tree.idx, (num_classes, -1))
        return obs[labels].reshape(-1), idx[labels].reshape(-1), tree.num_obs

    def label_to_one_hot(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """One-hot rows, flat."""
        return np.eye(num_classes, dtype=np.float32)[_checked_labels(labels, num_classes)].reshape(-1)

    def get_labels(
        self, ma: np.ndarray, Sa: np.ndarray, hr_softmax: HRCSoftmax, num_classes: int, batch_size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The likeliest label of each sample, and the probabilities of all labels, flat."""
        prob = self._probabilities(ma, Sa, hr_softmax)
        if prob.shape != (batch_size, num_classes):
            raise ArgumentError(
                f"get_labels: outputs of {prob.shape[0]} samples with {prob.shape[1]} classes came in, "
                f"`batch_size` (={batch_size}), `num_classes` (={num_classes})."
            )
        return prob.argmax(1).astype(np.int32), prob.reshape(-1)

    def get_errors(
        self,
        ma: np.ndarray,
        Sa: np.ndarray,
        labels: np.ndarray,
        hr_softmax: HRCSoftmax,
        num_classes: int,
        batch_size: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """1 for each sample whose likeliest label is wrong, 0 otherwise, and the probabilities of all labels, flat."""
        predicted, prob = self.get_labels(ma, Sa, hr_softmax, num_classes, batch_size)
        return (predicted != np.asarray(labels).reshape(-1)).astype(np.int32), prob

    def obs_to_label_prob(self, ma: np.ndarray, Sa: np.ndarray, hr_softmax: HRCSoftmax, num_classes: int) -> np.ndarray:
        """The probabilities of all labels, flat."""
        return self._probabilities(ma, Sa, hr_softmax).reshape(-1)

    def _probabilities(self, ma: np.ndarray, Sa: np.ndarray, tree: HRCSoftmax) -> np.ndarray:
        mu, var = (torch.as_tensor(np.array(a, np.float32)) for a in (ma, Sa))
        return class_probabilities(mu, var, tree).numpy()

    # ---- files ------------------------------------------------------------------------------------------------------
    def load_mnist_images(self, image_file: str, label_file: str, num_images: int) -> tuple[np.ndarray, np.ndarray]:
        """The first images (number, pixels) with values from 0 to 1, and their labels, from MNIST's idx files."""
        images = _read_idx(image_file, 2051)[:num_images].astype(np.float32) / 255.0
        labels = _read_idx(label_file, 2049)[:num_images].astype(np.int32)
        if len(images) < num_images or len(labels) < num_images:
            raise ArgumentError(
                f"load_mnist_images: {num_images} wanted, {image_file} holds {len(images)}, {label_file} holds {len(labels)}."
            )
        return images.reshape(num_images, -1), labels

    def load_cifar_images(self, image_file: str, num: int) -> tuple[np.ndarray, np.ndarray]:
        """The first images (number, 3072) with values from 0 to 1, and their labels, from a CIFAR-10 binary file."""
        raw = np.frombuffer(Path(image_file).read_bytes(), np.uint8)
        if raw.size < num * 3073:
            raise ArgumentError(f"load_cifar_images: {num} wanted, {image_file} holds {raw.size // 3073}.")
        rows = raw[: num * 3073].reshape(num, 3073)
        return rows[:, 1:].astype(np.float32) / 255.0, rows[:, 0].astype(np.int32)

    # ---- arrays -----------------------------------------------------------------------------------------------------
    def create_rolling_window(
        self,
        data: np.ndarray,
        output_col: np.ndarray,
        input_seq_len: int,
        output_seq_len: int,
        num_features: int,
        stride: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Windows of a series: inputs (number, seq * features) and what follows them (number, out_seq * columns)."""
        if stride < 1:
            raise ArgumentError(f"create_rolling_window: `stride` (={stride}) is less than one.")
        series = np.asarray(data, np.float32).reshape(-1, num_features)
        span = input_seq_len + output_seq_len
        if len(series) < span:
            raise ArgumentError(f"create_rolling_window: {len(series)} rows are fewer than one window of {span}.")
        starts = np.arange(0, len(series) - span + 1, stride)[:, None]
        inputs = series[starts + np.arange(input_seq_len)]
        outputs = series[starts + np.arange(input_seq_len, span)][:, :, np.asarray(output_col, int)]
        return inputs.reshape(len(starts), -1), outputs.reshape(len(starts), -1)

    def get_upper_triu_cov(self, batch_size: int, num_data: int, sigma: float) -> np.ndarray:
        """The upper triangle of sigma**2 I, row by row, once for each sample."""
        triangle = (np.eye(num_data) * sigma**2)[np.triu_indices(num_data)]
        return np.tile(triangle, batch_size).astype(np.float32)


def _checked_labels(labels: np.ndarray, num_classes: int) -> np.ndarray:
    given = np.asarray(labels).reshape(-1)
    out = given.astype(np.int64)
    if (out != given).any():
        raise ArgumentError(f"label {given[out != given][0]} is not a whole number.")
    if out.size and not (0 <= out.min() <= out.max() < num_classes):
        raise ArgumentError(
            f"labels from {out.min()} to {out.max()} came in, `num_classes` (={num_classes}).\n"
            f"  fix: labels from 0 to {num_classes - 1}."
        )
    return out


def _read_idx(filename: str, magic: int) -> np.ndarray:
    data, dims = Path(filename).read_bytes(), magic % 256
    found = int.from_bytes(data[:4], "big")
    if found != magic:
        raise ArgumentError(f"{filename}: starts with {found}, an idx file of this kind with {magic}.")
    sizes, values = data[4 : 4 + 4 * dims], np.frombuffer(data[4 + 4 * dims :], np.uint8)
    shape = [int.from_bytes(sizes[i : i + 4], "big") for i in range(0, 4 * dims, 4)]
    if len(sizes) < 4 * dims or values.size != math.prod(shape):
        raise ArgumentError(f"{filename}: {values.size} values for shape {shape}: the file is not complete.")
    return values.reshape(shape)


def exponential_scheduler(curr_v: float, min_v: float, decaying_factor: float, curr_iter: int) -> float:
    """`curr_v` after `curr_iter` decays, but at least `min_v`.

    Parameters
    ----------
    curr_v : the initial value
    min_v : the lower bound
    decaying_factor : the factor of each decay
    curr_iter : how many decays

    Examples
    --------
    >>> gridwise.tagi.exponential_scheduler(1.0, 0.1, 0.5, 2)
    0.25
    """
    return max(curr_v * decaying_factor**curr_iter, min_v)


class Normalizer:
    """Standardisation and max-min normalisation of columns, and their inverses; statistics ignore NaN.

    Parameters
    ----------
    method : stored for compatibility with pytagi, not used

    Examples
    --------
    >>> mean, std = gridwise.tagi.Normalizer().compute_mean_std(np.array([[1.0], [3.0]]))
    >>> mean, std
    (array([2.]), array([1.]))
    """

    def __init__(self, method: str | None = None) -> None:
        self.method = method

    @staticmethod
    def standardize(data: np.ndarray, mu: np.ndarray, std: np.ndarray) -> np.ndarray:
        return (data - mu) / (std + 1e-10)

    @staticmethod
    def unstandardize(norm_data: np.ndarray, mu: np.ndarray, std: np.ndarray) -> np.ndarray:
        return norm_data * (std + 1e-10) + mu

    @staticmethod
    def unstandardize_std(norm_std: np.ndarray, std: np.ndarray) -> np.ndarray:
        return norm_std * (std + 1e-10)

    @staticmethod
    def max_min_norm(data: np.ndarray, max_value: np.ndarray, min_value: np.ndarray) -> np.ndarray:
        if np.any(np.asarray(max_value) < np.asarray(min_value)):
            raise ArgumentError("max_min_norm: a maximum is less than its minimum.")
        return (data - min_value) / (max_value - min_value + 1e-10)

    @staticmethod
    def max_min_unnorm(norm_data: np.ndarray, max_value: np.ndarray, min_value: np.ndarray) -> np.ndarray:
        return norm_data * (max_value - min_value + 1e-10) + min_value

    @staticmethod
    def max_min_unnorm_std(norm_std: np.ndarray, max_value: np.ndarray, min_value: np.ndarray) -> np.ndarray:
        return norm_std * (max_value - min_value + 1e-10)

    @staticmethod
    def compute_mean_std(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.nanmean(data, axis=0), np.nanstd(data, axis=0)

    @staticmethod
    def compute_max_min(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.nanmax(data, axis=0), np.nanmin(data, axis=0)
