"""scikit-learn estimators with calibrated intervals: `pip install 'gridwise[sklearn]'`.

    from gridwise.tagi.sklearn import TAGIRegressor, TAGIClassifier

They work in `Pipeline`, `cross_val_score`, `GridSearchCV`, `TransformedTargetRegressor` and `BaggingRegressor`.
"""

from __future__ import annotations

from ..errors import UnsupportedError

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise UnsupportedError(
        "gridwise.tagi.sklearn needs scikit-learn.\n  fix: pip install 'gridwise[sklearn]'."
    ) from error

from .estimators.sklearn.classifier import TAGIClassifier as TAGIClassifier
from .estimators.sklearn.regressor import TAGIRegressor as TAGIRegressor

__all__ = ["TAGIClassifier", "TAGIRegressor"]
