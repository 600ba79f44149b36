"""Whole models: an ordinary torch model becomes one on a grid, or a list of what stands in the way.

layers      torch module -> distributed layer, with the same arguments and weights
functions   torch function -> as it is, a distributed layer made at the call, or a movement first
convert     walks the traced graph with these rules, keeps track of every tensor's grid, collects what fits none
model       what comes out: a graph that agrees once per call
"""

from .convert import distribute as distribute
from .model import DistributedModel as DistributedModel
