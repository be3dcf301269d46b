"""The command line: one file per verb."""

from watchglass.cli.app import main

__all__ = ["main"]
