"""One linear operator each, and its adjoint: `base` has what all share, `grid_copies` what the two copies share."""
