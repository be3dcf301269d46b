"""The diagnosis of an exception that ended a run, by the table of known ones. Pure functions."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from watchglass.records import Diagnosis, Failure, RankedCause, Severity, count
from watchglass.rules import cause_of_crash

#: How certain a cause is that an exception names.
_SCORE = 0.97
#: Most characters of a message in a headline; the verdict begins with all of it.
_LONGEST = 120


def with_crash(diagnoses: Sequence[Diagnosis], failure: Failure | None, steps: int) -> tuple[Diagnosis, ...]:
    """Diagnoses with that of the exception that ended the run, behind other errors: these may have led to it."""
    found = _crash(failure, steps)
    errors = [each for each in diagnoses if each.severity is Severity.ERROR]
    others = [each for each in diagnoses if each.severity is not Severity.ERROR]
    return (*errors, *([found] if found is not None else []), *others)


def _crash(failure: Failure | None, steps: int) -> Diagnosis | None:
    """The diagnosis of the exception that ended a run; None where it does not show the reason.

    Args:
        failure: Why the run failed.
        steps: TRAIN steps that were completed before.
    """
    if failure is None or failure.kind != "exception":
        return None
    cause = cause_of_crash(failure.type, failure.message)
    if cause is None:
        return None
    at = f"after {count(steps, 'training step')}" if steps else "before the first step had ended"
    what = (
        failure.figures
        or _allocation(failure.message)
        or textwrap.shorten(failure.message, _LONGEST, placeholder=" ...")
    )
    headline = f"{cause.title[:1].upper()}{cause.title[1:]}, {at}{': ' if what else ''}{what}"
    line = f"{failure.file}:{failure.line}: {failure.source}" if failure.file else ""
    evidence = tuple(filter(None, (f"{failure.type}: {failure.message}", line)))
    ranked = RankedCause(cause, _SCORE, steps, evidence, (), cause.what_to_try)
    return Diagnosis(
        causes=(ranked,), findings=(), severity=Severity.ERROR, step=steps,
        subject=failure.module, headline=headline,
        what_to_try=cause.what_to_try, workers=(failure.worker,) if failure.worker else (), models=(),
    )  # fmt: skip


def _allocation(message: str) -> str:
    """``"an allocation of 4,504 TB failed"``; "" where the message is about none in bytes."""
    match = re.search(r"allocate (\d+) bytes", message)
    if match is None:
        return ""
    size, unit = float(match[1]), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size >= 1000:
            size, unit = size / 1000, larger
    return f"an allocation of {size:,.4g} {unit} failed"
