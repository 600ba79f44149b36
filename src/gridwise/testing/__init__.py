"""Checks that are shipped for users, to test their own layers as Gridwise tests its own."""

from .workers import workers as workers
