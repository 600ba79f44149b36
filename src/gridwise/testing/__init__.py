"""Checks to run on one's own layers: adjoints, gradients, equality with the sequential layer, workers in pytest."""

from .adjoint import check_adjoint as check_adjoint
from .gradients import check_gradients as check_gradients
from .inner import CheckFailed as CheckFailed
from .sequential import check_equal_to_sequential as check_equal_to_sequential
