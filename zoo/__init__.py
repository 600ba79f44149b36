"""Public models that nobody here wrote, distributed and compared with themselves: `make zoo`."""
