"""Gradients inside a node: Gridwise's own."""

from gridwise.optim.slowmo_hook import SlowMoState as SlowMoState
from gridwise.optim.slowmo_hook import slowmo_hook as slowmo_hook
