"""Measures of predictions: Gridwise's own."""

from gridwise.tagi.metric import HRCSoftmaxMetric as HRCSoftmaxMetric
from gridwise.tagi.metric import classification_error as classification_error
from gridwise.tagi.metric import log_likelihood as log_likelihood
from gridwise.tagi.metric import mse as mse
from gridwise.tagi.metric import rmse as rmse
