"""The version of the package, for whoever writes it down."""

__version__ = "0.1.0"
