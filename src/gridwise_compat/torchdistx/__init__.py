"""torchdistX's modules and names, on Gridwise: see docs/from-torchdistx.md."""

__version__ = "0.3.0.dev0"
