"""Whole models: record what a torch model does, place each of its tensors on a grid, and run the result.

distribute         the user's entry point
model              its result: an object of the user's class, whose calls run on blocks
inputs             the arguments of a call, and where their tensors lie; `roots`: the modules that a function calls
replicated_state   parameters and buffers, whole on every worker of the grid; `parameters`: those that are cut
runner             one agreement per call; `recorder`: all workers record and place new structures together; `same_blocks`,
                   `local_loss`: warnings where each worker passed the whole, or took the mean of its block
self_check         whether recording works with a torch that the tests have not seen
recording          what a model does with inputs of one structure: a flat graph of ATen operators of global sizes
placing, rules, placement, movement      where every tensor of a recording lies, and what is moved
checks             checks on values: computed on blocks, agreed on once per call
inner_gradients    gradients that a model asks for itself; `autograd_functions`: Functions with a backward of their own
program            the steps that run a recording on blocks; `report`: what they gather
capture            a whole training step as CUDA graphs; `compiled`: torch.compile of the pieces between movements
"""

from .capture import CapturedStep as CapturedStep
from .capture import capture as capture
from .distribute import distribute as distribute
from .model import DistributedModel as DistributedModel
