"""Gridwise: tensors on a Cartesian grid of workers."""
