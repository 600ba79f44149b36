"""Rules, by kind of operator: how the tensors of a call have to lie, where its outputs lie then, and what makes them."""

from . import (
    creation,
    indexing,
    joining,
    losses,
    norms,
    padding,
    products,
    random,
    reductions,
    reshaping,
    transforms,
    unfolding,
    windowed,
)
from .call import Call as Call
from .call import NoRule as NoRule
from .call import Placed as Placed
from .pointwise import pointwise as pointwise
from .table import register_rule as register_rule
from .table import rule_for as rule_for

KINDS = (
    creation, indexing, joining, losses, norms, padding, products,
    random, reductions, reshaping, transforms, unfolding, windowed,
)  # fmt: skip
"""The files of the table; importing one enters its rules."""
