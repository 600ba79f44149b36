"""Classification with probabilities that include the uncertainty of the network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...errors import ArgumentError
from ..hrc_softmax import class_probabilities, class_tree
from ..metric import classification_error
from ..nn import Sequential
from .estimator import Estimator
from .fitted_network import Noise


@dataclass(frozen=True)
class ClassPrediction:
    """The likeliest label of each sample, and the probabilities of all classes, which add up to one.

    Attributes
    ----------
    label
        The label of each sample.
    probability
        One row per sample, one column per class.

    Examples
    --------
    >>> prediction = gridwise.tagi.ClassPrediction(label=np.array([1]), probability=np.array([[0.2, 0.8]]))
    >>> prediction.label
    array([1])
    """

    label: np.ndarray
    probability: np.ndarray


class Classifier(Estimator):
    """Predicts the probability of each class.

    Parameters
    ----------
    net
        A `Sequential` with one output for each node of the class tree (`outputs_for(num_classes)`: 11 for 10 classes),
        or, with `encoding='one-hot'`, one for each class, with `Remax` or `ClosedFormSoftmax` at the end.
    num_classes
        Number of classes; labels are 0 to `num_classes - 1`.
    sigma_v
        Standard deviation of the noise on the turns (+1, -1), or on the one-hot observations; a number or a function of
        the epoch.
    encoding
        'tree' (hierarchical softmax: each sample updates log2(num_classes) outputs) or 'one-hot'.
    compile
        See `TrainStep`.

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> x = np.linspace(-1, 1, 40, dtype='float32')[:, None]
    >>> net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, gridwise.tagi.Classifier.outputs_for(3)))
    >>> model = gridwise.tagi.Classifier(net, 3, sigma_v=0.3).fit(x, np.arange(40) % 3, epochs=2, progress=False)
    >>> model.predict(x).probability.shape
    (40, 3)
    """

    def __init__(
        self, net: Sequential, num_classes: int, sigma_v: Noise = 0.05, encoding: str = "tree", compile: bool = False
    ) -> None:
        if encoding not in ("tree", "one-hot"):
            raise ArgumentError(f"Classifier: `encoding` (={encoding!r}) is 'tree' or 'one-hot'.")
        self.observe = "indices" if encoding == "tree" else "all"
        super().__init__(net, sigma_v, compile)
        self.num_classes, self.encoding = num_classes, encoding
        self.tree = class_tree(num_classes)

    @staticmethod
    def outputs_for(num_classes: int) -> int:
        """The number of outputs that a network needs for the tree of `num_classes` classes."""
        return class_tree(num_classes).len

    # ---- before the first epoch -------------------------------------------------------------------------------------
    def _check_outputs(self, units: int, columns: int) -> None:
        if columns != 1:
            raise ArgumentError(
                f"Classifier: `y` has {columns} columns; it is one label for each row, whatever the encoding.\n"
                "  fix: y.argmax(1), if the rows are one-hot."
            )
        needed = self.tree.len if self.encoding == "tree" else self.num_classes
        if units != needed:
            raise ArgumentError(
                f"Classifier: {self.num_classes} classes with `encoding` (={self.encoding!r}) need {needed} outputs, the "
                f"network has {units}.\n  fix: a last layer with {needed} outputs."
            )

    def _inspect(self, what: str, x: Tensor, y: Tensor) -> None:
        y = y.double()
        wrong = ~((y >= 0) & (y < self.num_classes) & (y == y.trunc()))
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0, 0])
            from_one = bool((y == y.trunc()).all()) and int(y.min()) == 1 and int(y.max()) == self.num_classes
            raise ArgumentError(
                f"{what}: `y` has the label {y[row, 0].item():g} in row {row}, labels are whole numbers from 0 to "
                f"{self.num_classes - 1} (`num_classes` - 1).\n  fix: "
                + ("y - 1: these labels count from 1." if from_one else "number the classes from 0.")
            )

    # ---- training and predictions -----------------------------------------------------------------------------------
    def _learn(self, x: Tensor, y: Tensor, sigma: float) -> float:
        label = y.reshape(-1).long()
        if self.encoding == "tree":
            obs = torch.as_tensor(self.tree.obs, device=x.device).reshape(self.num_classes, -1)[label]
            idx = torch.as_tensor(self.tree.idx, device=x.device).reshape(self.num_classes, -1)[label]
            mu, var = self._step(x, obs, sigma**2, idx)
        else:
            mu, var = self._step(x, torch.nn.functional.one_hot(label, self.num_classes), sigma**2)
        guess = self._probabilities(mu.flatten(1), var.flatten(1)).argmax(1)
        return float((guess != label).float().mean())

    def _probabilities(self, mu: Tensor, var: Tensor) -> Tensor:
        p = class_probabilities(mu, var, self.tree) if self.encoding == "tree" else mu.clamp_min(0.0)
        return p / p.sum(1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)

    def predict(self, x: object, batch_size: int = 1024) -> ClassPrediction:
        """Labels and probabilities for all rows of `x`."""
        p = self._probabilities(*self._outputs(self._rows(x, "predict"), batch_size)).numpy()
        return ClassPrediction(p.argmax(1), p)

    def error_rate(self, x: object, label: object, batch_size: int = 1024) -> float:
        """The fraction of rows whose likeliest label is wrong."""
        return classification_error(self.predict(x, batch_size).label, np.asarray(label))

    def _kind(self) -> str:
        return f"Classifier(num_classes={self.num_classes}, encoding={self.encoding!r})"
