"""Encodings, windows, files, normalisation, metrics and device questions under pytagi's names."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gridwise.tagi as tagi
from gridwise.errors import ArgumentError
from gridwise.tagi import metric
from gridwise.tagi.hrc_softmax import class_probabilities, class_tree


def test_ten_classes_are_those_of_the_original() -> None:
    obs, idx, count = tagi.Utils().label_to_obs(np.array([3, 9]), 10)
    assert obs.tolist() == [1, 1, -1, -1, -1, 1, 1, -1]
    assert idx.tolist() == [1, 2, 4, 8, 1, 3, 6, 11]
    assert count == 4
    assert [class_tree(n).len for n in (2, 3, 4, 5, 7, 8, 100)] == [1, 3, 3, 6, 7, 7, 102]


@settings(deadline=None)  # a loaded machine is no failure
@given(st.integers(2, 200))
def test_every_class_has_its_own_way_and_a_sure_network_finds_it(classes: int) -> None:
    tree = class_tree(classes)
    ways = {tuple(zip(i, o, strict=True)) for i, o in zip(*_rows(tree), strict=True)}
    assert len(ways) == classes
    assert sorted(set(tree.idx.tolist()))[-1] == tree.len
    mu = torch.zeros(classes, tree.len)
    for label, (nodes, turns) in enumerate(zip(*_rows(tree), strict=True)):
        mu[label, np.array(nodes) - 1] = 10.0 * torch.tensor(turns)
    p = class_probabilities(mu, torch.zeros_like(mu), tree)
    assert p.argmax(1).tolist() == list(range(classes))
    assert (p.diagonal() > 0.999).all()


def _rows(tree: tagi.HRCSoftmax) -> tuple[list[list[int]], list[list[float]]]:
    return tree.idx.reshape(-1, tree.num_obs).tolist(), tree.obs.reshape(-1, tree.num_obs).tolist()


def test_labels_and_probabilities_equal_the_originals() -> None:
    utils = tagi.Utils()
    mu, var = np.linspace(-1, 1, 22).astype(np.float32), np.full(22, 0.3, np.float32)
    tree = utils.get_hierarchical_softmax(10)
    label, prob = utils.get_labels(mu, var, tree, 10, 2)
    assert label.tolist() == [7, 8]
    recorded = [1.5708664e-04, 4.6643234e-04, 1.2296647e-03, 2.8478070e-03, 3.2489682e-03]  # pytagi 0.2.1
    np.testing.assert_allclose(prob[:5], recorded, rtol=1e-5)
    wrong, _ = utils.get_errors(mu, var, np.array([7, 1]), tree, 10, 2)
    assert wrong.tolist() == [0, 1]
    rate = tagi.HRCSoftmaxMetric(10)
    assert rate.error_rate(mu, var, np.array([7, 1])) == 0.5
    np.testing.assert_allclose(utils.obs_to_label_prob(mu[:11], var[:11], tree, 10), prob[:10])


def test_encodings_and_windows() -> None:
    utils = tagi.Utils()
    assert utils.label_to_one_hot(np.array([1, 0]), 3).tolist() == [0, 1, 0, 1, 0, 0]
    with pytest.raises(ArgumentError, match="labels from 0 to 3"):
        utils.label_to_one_hot(np.array([4]), 4)
    x, y = utils.create_rolling_window(np.arange(12.0).reshape(6, 2), np.array([0]), 2, 1, 2, 1)
    assert x.tolist() == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9]]
    assert y.tolist() == [[4], [6], [8], [10]]
    assert utils.get_upper_triu_cov(1, 3, 0.5).tolist() == [0.25, 0, 0, 0.25, 0, 0.25]


def test_image_files(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, 2), dtype=np.uint8)
    (tmp_path / "images").write_bytes(struct.pack(">4I", 2051, 3, 2, 2) + pixels.tobytes())
    (tmp_path / "labels").write_bytes(struct.pack(">2I", 2049, 3) + bytes([5, 0, 4]))
    utils = tagi.Utils()
    images, labels = utils.load_mnist_images(str(tmp_path / "images"), str(tmp_path / "labels"), 2)
    np.testing.assert_allclose(images, pixels[:2].reshape(2, 4) / 255, rtol=1e-6)
    assert labels.tolist() == [5, 0]
    with pytest.raises(ArgumentError, match="starts with 2049"):
        utils.load_mnist_images(str(tmp_path / "labels"), str(tmp_path / "labels"), 1)
    raw = np.random.default_rng(1).integers(0, 256, (2, 3073), dtype=np.uint8)
    (tmp_path / "cifar").write_bytes(raw.tobytes())
    images, labels = utils.load_cifar_images(str(tmp_path / "cifar"), 2)
    assert labels.tolist() == raw[:, 0].tolist()
    np.testing.assert_allclose(images, raw[:, 1:] / 255, rtol=1e-6)


def test_too_few_labels_are_not_too_few_images(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(b"".join(n.to_bytes(4, "big") for n in (2051, 3, 1, 1)) + bytes(3))
    (tmp_path / "labels").write_bytes(b"".join(n.to_bytes(4, "big") for n in (2049, 2)) + bytes(2))
    with pytest.raises(ArgumentError, match=r"3 wanted, [^\n]*images holds 3, [^\n]*labels holds 2"):
        tagi.Utils().load_mnist_images(str(tmp_path / "images"), str(tmp_path / "labels"), 3)


def test_what_cannot_be_encoded_cut_or_read(tmp_path: Path) -> None:
    utils = tagi.Utils()
    with pytest.raises(ArgumentError, match=r"1\.7 is not a whole number"):
        utils.label_to_obs(np.array([1.0, 1.7]), 10)
    with pytest.raises(ArgumentError, match="stride"):
        utils.create_rolling_window(np.arange(9.0), np.array([0]), 3, 1, 1, 0)
    (tmp_path / "none").write_bytes(b"")
    (tmp_path / "part").write_bytes(struct.pack(">4I", 2051, 2, 3, 3) + bytes(17))
    for name, told in (("none", "starts with 0"), ("part", "not complete")):
        with pytest.raises(ArgumentError, match=told):
            utils.load_mnist_images(str(tmp_path / name), str(tmp_path / name), 1)


def test_normalizer_goes_there_and_back() -> None:
    data = np.random.default_rng(0).standard_normal((20, 3)) * 4 + 1
    data[3, 1] = np.nan
    n = tagi.Normalizer()
    mean, std = n.compute_mean_std(data)
    standard = n.standardize(data, mean, std)
    np.testing.assert_allclose(np.nanstd(standard, 0), 1.0)
    np.testing.assert_allclose(n.unstandardize(standard, mean, std), data)
    high, low = n.compute_max_min(data)
    np.testing.assert_allclose(n.max_min_unnorm(n.max_min_norm(data, high, low), high, low), data)
    assert n.unstandardize_std(np.ones(3), std) == pytest.approx(std)
    assert tagi.exponential_scheduler(1.0, 0.3, 0.5, 1) == 0.5
    assert tagi.exponential_scheduler(1.0, 0.3, 0.5, 5) == 0.3


def test_metrics() -> None:
    rng = np.random.default_rng(0)
    y = rng.standard_normal(20_000)
    zero, one = np.zeros_like(y), np.ones_like(y)
    assert metric.rmse(zero, y) == pytest.approx(1.0, abs=0.02)
    assert metric.log_likelihood(zero, y, one) == pytest.approx(-0.5 * np.log(2 * np.pi) - 0.5, abs=0.02)
    assert metric.coverage(zero, y, one) == pytest.approx(0.95, abs=0.01)
    levels, found = metric.calibration(zero, y, one)
    np.testing.assert_allclose(levels, found, atol=0.02)
    y[:100] = np.nan
    assert metric.mse(zero, y) == pytest.approx(1.0, abs=0.03)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a device")
def test_without_a_device_the_answer_is_no() -> None:
    assert tagi.cuda.is_available() is False
    assert tagi.cuda.is_nccl_available() is False
    assert tagi.cuda.get_device_count() == 0
    assert tagi.cuda.set_device(0) is False
    with pytest.raises(ArgumentError, match="there are 0"):
        tagi.cuda.get_device_memory(0)


def test_seed() -> None:
    tagi.manual_seed(3)
    first = tagi.nn.Linear(3, 3).mu_w
    tagi.manual_seed(3)
    torch.testing.assert_close(tagi.nn.Linear(3, 3).mu_w, first)
