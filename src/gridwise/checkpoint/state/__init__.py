"""What a program holds: modules, optimisers and dicts as flat keys, tensors as blocks.

flatten          a state as flat keys, and key_tree back
local_blocks     what a worker holds of a global tensor
plain_tensors    many tensors that are whole in host memory, in columns
same_structure   whether all workers hold the same names, dtypes and shapes
"""
