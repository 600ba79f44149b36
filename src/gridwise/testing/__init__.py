"""Checks for users' own layers: the same that Gridwise runs on its own."""

from .adjoint import check_adjoint as check_adjoint
from .contract import PrimitiveContract as PrimitiveContract
from .gradients import check_gradients as check_gradients
from .inner import CheckFailed as CheckFailed
from .rules import check_rule as check_rule
from .sequential import check_equal_to_sequential as check_equal_to_sequential
from .workers import workers as workers
