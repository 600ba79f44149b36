"""torch's layers on a grid: find what this worker's block of the output needs, move it, call torch.

`nn.windows` has the code that windowed layers share, `standardise` the code that norms share.
"""
