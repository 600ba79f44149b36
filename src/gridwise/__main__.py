"""`python -m gridwise` is the command `gridwise`."""

from gridwise.cli import main

if __name__ == "__main__":
    main()
