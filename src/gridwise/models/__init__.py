"""Whole models: record what a torch model does, place every tensor of it on a grid, run the result.

distribute         what the user calls
model              what comes out: an object of the user's class, whose calls run on blocks
inputs             its arguments, and where their tensors lie; `roots`: the modules that a function calls
replicated_state   parameters and buffers, whole on every worker of the grid
runner             one agreement per call; `recorder`: all workers record and place what is new
recording          what a model does with inputs of one structure: a flat graph of ATen operators of global sizes
placing, rules, placement, movement      where every tensor of a recording lies, and what is moved
program            the function that runs it on blocks; `report`: what it gathers
capture            a whole training step as CUDA graphs; `compiled`: pieces between movements for torch.compile
"""

from .capture import CapturedStep as CapturedStep
from .capture import capture as capture
from .distribute import distribute as distribute
from .model import DistributedModel as DistributedModel
