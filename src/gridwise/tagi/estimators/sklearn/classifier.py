"""Classification for scikit-learn: probabilities that include the uncertainty of the network, and learnt noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ....errors import ArgumentError
from ...hrc_softmax import class_tree
from ...nn.data_struct import Values
from .base import LEARNT, TAGIEstimator, scale_of
from .tasks import Classes, probabilities


class TAGIClassifier(ClassifierMixin, TAGIEstimator):
    """A Bayesian neural network, trained in closed form, that predicts the probability of each class.

    Classes are the leaves of a binary tree, and a label is a turn (+1 or -1) at each node on the path to it. Turns have
    noise: its size and the number of epochs are found on held-out rows; then a new network learns from all rows.

    Parameters
    ----------
    hidden_layers, activation, batch_size, max_epochs, early_stopping, patience, validation_fraction, random_state, verbose
        As in `TAGIRegressor`.
    noise
        'learnt', or a number: the standard deviation of the noise on a turn.

    Attributes
    ----------
    classes_ : array (n_classes,)
        The labels, of whatever type.
    noise_ : float
        Standard deviation of the noise on a turn.
    n_epochs_, validation_score_, net_, n_features_in_, feature_names_in_
        As in `TAGIRegressor`; the score is the mean log-probability of the labels of the held-out rows.

    Examples
    --------
    >>> import numpy as np
    >>> from gridwise.tagi.sklearn import TAGIClassifier
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = TAGIClassifier(random_state=0).fit(x, np.where(x[:, 0] > 0, "right", "left"))
    >>> model.predict([[2.0, 0.0]])
    array(['right'], dtype='<U5')
    >>> model.predict_proba([[2.0, 0.0]]).shape
    (1, 2)
    """

    noise_: float

    # ---- learning ---------------------------------------------------------------------------------------------------
    def fit(self, X: Any, y: Any, sample_weight: Values | None = None) -> TAGIClassifier:
        """Learn from rows X (n_samples, n_features) and labels y (n_samples,) of any type."""
        settings = self._settings((LEARNT,))
        with self._unless_refused():
            X, y, weight = self._data(X, y, sample_weight, reset=True)
            self.classes_, label = np.unique(y, return_inverse=True)
            self._check_classes()
            self.scale_x_ = scale_of(X, weight)
            self._learn(self._task(X, label, weight), len(X), settings)
            self.noise_ = float(self._found)
        if self.verbose:
            self._print(
                f"noise {self.noise_:.4g}, {self.n_epochs_} epochs, held-out score {self.validation_score_:.4f}"
            )
        return self

    def partial_fit(
        self, X: Values, y: Any, classes: Any = None, sample_weight: Values | None = None
    ) -> TAGIClassifier:
        """Learn the rows once, continuing from earlier calls; the first needs all `classes` unless `y` has them."""
        first = not hasattr(self, "net_")
        settings = self._settings((LEARNT,))
        with self._unless_refused():
            X, y, weight = self._data(X, y, sample_weight, reset=first)
            if first:
                self.classes_ = np.unique(y if classes is None else classes)
                self._check_classes()
                self.scale_x_ = scale_of(X, weight)
            if unknown := sorted(set(np.unique(y).tolist()) - set(self.classes_.tolist()), key=str):
                raise ArgumentError(
                    f"TAGIClassifier.partial_fit: `y` has the labels {unknown}, which are not among `classes_` "
                    f"(={self.classes_.tolist()}).\n  fix: partial_fit(X, y, classes=all of them) in the first call."
                )
            task = self._task(X, np.searchsorted(self.classes_, y), weight)
            if first:
                self._found = task.first_noise()
                self.n_epochs_, self.validation_score_ = 1, float("nan")
            self._learn_once(task, len(X), settings.batch_size, first)
            self.noise_ = float(self._found)
        return self

    def _data(
        self, X: Any, y: Any, sample_weight: Values | None, reset: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, labels and weights, without rows of weight zero."""
        X, y = validate_data(self, X, y, dtype=np.float64, reset=reset)
        check_classification_targets(y)
        weight = self._weights(sample_weight, X)
        return X[weight > 0], y[weight > 0], weight[weight > 0]

    def _check_classes(self) -> None:
        if len(self.classes_) < 2:
            raise ArgumentError(
                f"TAGIClassifier: `y` has one class, {self.classes_[0]!r}; at least two classes are needed."
            )

    def _task(self, X: np.ndarray, label: np.ndarray, weight: np.ndarray) -> Classes:
        x, count = self.scale_x_.standardise(torch.from_numpy(X)), len(self.classes_)
        fixed = None if self.noise == LEARNT else float(self.noise)
        labels, w = torch.from_numpy(np.asarray(label, np.int64)), torch.from_numpy(weight)
        return Classes(self._network(x.shape[1], class_tree(count).len), x, labels, w, count, fixed)

    # ---- predictions ------------------------------------------------------------------------------------------------
    def predict_proba(self, X: Values) -> np.ndarray:
        """The probability of each of `classes_`, (n_samples, n_classes)."""
        check_is_fitted(self, "net_")
        return probabilities(*self._outputs(X), class_tree(len(self.classes_)), self.noise_).numpy()

    def predict(self, X: Values) -> np.ndarray:
        """The likeliest label of each row."""
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]
