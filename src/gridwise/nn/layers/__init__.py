"""torch's layers on a grid: find what my block of the output needs, move it, call torch.

`windows` has what layers with a window share; `standardise` what the norms share.
"""
