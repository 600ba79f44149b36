"""Classification with probabilities that know how sure the network is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PartitionError
from .estimator import Estimator, Noise
from .hrc_softmax import class_probabilities, class_tree
from .metric import classification_error
from .nn import Sequential


@dataclass(frozen=True)
class ClassPrediction:
    """The likeliest label of each sample, and the probabilities (sample, class) of all, which add up to one."""

    label: np.ndarray
    probability: np.ndarray


class Classifier(Estimator):
    """Predicts the probability of each class.

    Parameters
    ----------
    net
        A `Sequential` whose outputs are the nodes of the class tree (`outputs_for(num_classes)`: 11 for 10 classes),
        or, with `encoding='one-hot'`, one for each class, with `Remax` or `ClosedFormSoftmax` at the end.
    num_classes
        How many classes; labels are 0 to `num_classes - 1`.
    sigma_v
        Standard deviation of the noise of the turns (+1, -1), or of the one-hot observations; a number or a function of
        the epoch.
    encoding
        'tree' (hierarchical softmax: each sample updates log2(num_classes) outputs) or 'one-hot'.
    compile
        See `TrainStep`.
    """

    def __init__(
        self,
        net: Sequential,
        num_classes: int,
        sigma_v: Noise = 0.05,
        encoding: str = "tree",
        compile: bool = False,
    ) -> None:
        if encoding not in ("tree", "one-hot"):
            raise PartitionError(f"Classifier: `encoding` (={encoding!r}) is 'tree' or 'one-hot'.")
        self.observe = "indices" if encoding == "tree" else "all"
        super().__init__(net, sigma_v, compile)
        self.num_classes, self.encoding = num_classes, encoding
        self.tree = class_tree(num_classes)

    @staticmethod
    def outputs_for(num_classes: int) -> int:
        """How many outputs a network needs for the tree of `num_classes` classes."""
        return class_tree(num_classes).len

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

    def predict(self, x: Any, batch_size: int = 1024) -> ClassPrediction:
        """Labels and probabilities for all rows of `x`."""
        p = self._probabilities(*self._outputs(x, batch_size)).numpy()
        return ClassPrediction(p.argmax(1), p)

    def error_rate(self, x: Any, label: Any, batch_size: int = 1024) -> float:
        """The fraction of rows whose likeliest label is wrong."""
        return classification_error(self.predict(x, batch_size).label, np.asarray(label))
