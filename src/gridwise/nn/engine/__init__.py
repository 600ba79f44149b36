"""What every distributed layer runs on.

module, layer        the base of all layers, and of those with parameters
plans                what set-up has made, kept for inputs that come back
agreement, mode      what workers must agree on, and the one error if they do not; switch: what is on or off
operator             linear operators and their bridge to autograd
carrier              carries out one worker's part of a route, and its adjoint
copy_and_sum, global_sum, all_max   whole tensors: to a team, from a team, one number for all
graph_pieces         a step as CUDA graphs, with movements between them
arguments, autocast, grid_random    partitions among arguments; dtypes; random numbers that no grid changes
"""
