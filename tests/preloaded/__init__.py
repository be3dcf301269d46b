"""A Python interpreter for tests that has its largest imports done: see :mod:`preloaded.interpreter`."""

from preloaded.interpreter import Preloaded

__all__ = ["Preloaded"]
