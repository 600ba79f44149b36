"""Closed-form inference as a training step.

moments, update        moments of activations; innovations applied to parameters
initial_values, products   where parameters start; matrix products
train_step             forward, observation, backward, update in one call
compiled_step, tracing, cuda_graph   the same as one compiled function
finite_values          values that no network can use, refused before anything is computed
checked_step, jumps    trusted only after it has done what the plain step does
"""
