"""Networks on several workers.

network, replicas            data-parallel: the same parameters on all workers, raw sums added before each step
grid_sequential, grid_plan   batch x space grids: which rows each windowed layer fetches
carrier                      one movement for a mean and its variance
"""
