"""`python -m gridwise` is the command `gridwise`."""

from gridwise.cli import main

main()
