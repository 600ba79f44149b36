"""The version of the package, for whoever writes it down."""

__version__ = "0.2.0.dev0"
