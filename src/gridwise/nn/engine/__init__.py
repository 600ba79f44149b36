"""What every distributed layer runs on.

module, layer        the base of all layers, and of those with parameters
identity, plans      who a layer is to the other workers; what set-ups assigned, kept for inputs that recur
agreement, mode      what workers must agree on besides the call, and the one error if they do not
operator             linear operators and their bridge to autograd
carrier              carries out one worker's part of a route, and its adjoint
copy_and_sum, global_sum, all_max   copies to a team and sums over it; a sum that counts once; a maximum
graph_pieces         a step as CUDA graphs, with movements between them
arguments, autocast, grid_random    checks of arguments; dtypes; keys of random numbers independent of the grid
"""
