"""One linear operator each, and its adjoint: `base` has what they share, `grid_copies` what the two copies do."""
