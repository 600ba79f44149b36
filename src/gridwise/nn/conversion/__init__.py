"""Whole models: an ordinary torch model becomes one on a grid, or a list of what stands in the way.

convert     what the user calls
inputs      the arguments of the model
trace       its graph; `plainly`: of modules that torch.fx cannot look into
nodes       walks the graph with rules, collects what fits none
layers      torch module -> distributed layer, with the same arguments and weights
functions   torch function -> as it is, or a distributed layer made at the call
joining, products, recurrent, applying, expanding, reshaping, indexing, reducing      the rules of all other functions
state       what is known of a tensor in the graph: its grid, and which extents are equal
walk        what rules change the graph with
moves, regroup, blocks, attended      what the new model does between its layers
held        parameters that the model uses outside of layers
rehearsal   the sequential model, run without numbers before each call of a new kind
model       what comes out: a graph that agrees once per call
"""

from .convert import distribute as distribute
from .model import DistributedModel as DistributedModel
