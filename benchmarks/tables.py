"""Tables for people, row by row, that are Markdown too; and what the figures in them were measured on."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pairs import Comparison


class Table:
    """A Markdown table whose columns line up, printed as it grows.

    Args:
        columns: Titles and widths; the first is aligned to the left, the others to the right.
    """

    def __init__(self, columns: Sequence[tuple[str, int]]) -> None:
        self._widths = [max(width, len(title)) for title, width in columns]
        self._titles = [title for title, _ in columns]

    @property
    def head(self) -> str:
        """The titles and the line below them."""
        rules = ["-" * self._widths[0], *("-" * (width - 1) + ":" for width in self._widths[1:])]
        return f"{self.row(self._titles)}\n| {' | '.join(rules)} |"

    def row(self, cells: Sequence[object]) -> str:
        """One row."""
        texts = ["" if cell is None else str(cell) for cell in cells]
        aligned = [texts[0].ljust(self._widths[0])]
        aligned += [text.rjust(width) for text, width in zip(texts[1:], self._widths[1:], strict=True)]
        return f"| {' | '.join(aligned)} |"


class Progress:
    """Shows on a terminal, once a second, how far a measurement is."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._shown = time.monotonic()

    def __call__(self, now: Comparison) -> None:
        """Show ``now`` if it is time."""
        if sys.stderr.isatty() and time.monotonic() - self._shown > 1:
            self._shown = time.monotonic()
            control = f"control {now.control.ratio:.4f} +- {now.control.half_width:.4f}"
            print(f"\r{self._name}: {now.watched.ratio:.4f}, {control}, {now.seconds:.0f} s ", end="", file=sys.stderr)


def machine() -> dict[str, object]:
    """What it was measured on."""
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    found: dict[str, object] = {
        "processor": processor, "cores": len(os.sched_getaffinity(0)), "system": platform.platform(),
    }  # fmt: skip
    torch = sys.modules.get("torch")  # a benchmark of another framework imports none
    if torch is not None and torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def versions(*packages: str) -> dict[str, str]:
    """What it was measured with: Python, and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def sentence(described: dict[str, object] | dict[str, str]) -> str:
    """``machine()`` or ``versions()`` on one line."""
    return ", ".join(f"{key} {value}" for key, value in described.items())
