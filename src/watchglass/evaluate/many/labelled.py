"""Lines of an evaluator that is one of many."""

from __future__ import annotations

import io
from typing import TextIO


class Labelled(io.TextIOBase):
    """What an evaluator prints, with the name of its run: ``watchglass: [name] ...``."""

    def __init__(self, output: TextIO, name: str) -> None:
        self._output, self._name = output, name

    def write(self, text: str) -> int:
        """Print a line that begins with the name of the product."""
        return self._output.write(text.replace("watchglass: ", f"watchglass: [{self._name}] ", 1))

    def flush(self) -> None:
        """Print it now."""
        self._output.flush()
