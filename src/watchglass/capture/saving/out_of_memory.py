"""Out of memory inside capture: how it is recognised and reported."""

from __future__ import annotations

import logging

from watchglass.record import CapturedRecords
from watchglass.records import facts

_log = logging.getLogger("watchglass")


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, on the host or on a device."""
    if isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    # On the host PyTorch raises a plain one.
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def report_exhaustion(records: CapturedRecords, what: str, error: Exception) -> None:
    """Log and record that capture of one kind of tensors has stopped."""
    reason = (str(error).splitlines() or [""])[0] or type(error).__name__
    _log.warning(
        "watchglass: stopped capturing %s: out of memory (%s); the run continues. Lower capture_memory_bytes, or keep "
        "fewer of these tensors in collections",
        what, reason,
    )  # fmt: skip
    records.add_fact(facts.CaptureOutOfMemory(f"{type(error).__name__}: {reason}"), what)
