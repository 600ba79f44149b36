"""Closed-form inference as a training step.

moments, update                      moments of activations; innovations applied to parameters
initial_values, products             initial means and variances; matrix products
train_step                           forward, observation, backward, update in one call
compiled_step, tracing, cuda_graph   the same as one compiled function
finite_values                        NaN, infinite and negative values, refused before anything is computed
checked_step, jumps                  a compiled step, checked against the plain one before it is trusted
"""
