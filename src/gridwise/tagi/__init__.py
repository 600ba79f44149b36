"""TAGI: Bayesian neural networks by closed-form inference, with pytagi's names.

Every weight and every hidden unit is a Gaussian. A batch is one forward pass of means and variances and one backward
pass of innovations; there is no gradient descent and no learning rate. `gridwise.tagi.nn` has the layers;
`Regressor`, `Classifier` and `Forecaster` go from arrays to predictions with intervals in a few lines, and
`gridwise.tagi.sklearn` has scikit-learn estimators that learn the noise from the data.
"""

import torch as _torch

from . import cuda as cuda
from . import metric as metric
from . import nn as nn
from .calibration import Calibration as Calibration
from .calibration import calibration_curve as calibration_curve
from .distributed.grid_sequential import GridSequential as GridSequential
from .distributed.grid_sequential import on_grid as on_grid
from .estimators.classification import Classifier as Classifier
from .estimators.classification import ClassPrediction as ClassPrediction
from .estimators.forecasting import Forecaster as Forecaster
from .estimators.prediction import Prediction as Prediction
from .estimators.regression import Regressor as Regressor
from .metric import HRCSoftmaxMetric as HRCSoftmaxMetric
from .tagi_utils import HRCSoftmax as HRCSoftmax
from .tagi_utils import Normalizer as Normalizer
from .tagi_utils import Utils as Utils
from .tagi_utils import exponential_scheduler as exponential_scheduler


def manual_seed(seed: int) -> None:
    """Seed torch's generators, from which the initial parameters are drawn.

    Parameters
    ----------
    seed : the seed

    Examples
    --------
    >>> gridwise.tagi.manual_seed(0)
    """
    _torch.manual_seed(seed)
