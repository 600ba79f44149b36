"""Whole models: record what a torch model does, place every tensor of it on a grid, run the result.

recording    what a model does with inputs of one structure: a flat graph of ATen operators of global sizes
placement, rules, program, report      where every tensor of a recording lies, and the function that runs it on blocks
model        what comes out: parameters, buffers and modes of the torch model, run on a grid
distribute   what the user calls
"""
