"""Parameters that are cut: each worker has its block, and all of it only while an operator uses it.

cutting            a model's parameters become blocks, evenly by bytes
group              parameters gathered in one message, and the sums of their gradients by blocks
gathering          one gather in one call: the nodes of autograd, what backward gathers again, and what runs ahead
gather_steps       where the steps of a program gather them
"""
