"""Facts of other libraries' tests: what is called, with which arguments and shapes, and how it is cut. No code of theirs.

table.py           a table, and the cases that it stands for
calls.py           what they call, with torch alone
shard_tensor.py    ShardTensor of NVIDIA's PhysicsNeMo
dist_conv.py       LBANN's DistConv
dtensor.py         torch's DTensor
claims.py          what docs/comparison.md claims of Gridwise and others
"""
