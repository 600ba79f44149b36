"""The state of a program: modules, optimisers and dicts as flat keys, tensors as blocks.

flatten          a state as flat keys
key_tree         flat keys as a tree again
optimisers       the parameters of optimisers by their names
per_worker       a value that each worker has for itself
local_blocks     a worker's part of a global tensor
plain_tensors    many tensors that are whole in host memory, in columns
same_structure   whether all workers hold the same names, dtypes and shapes
"""
