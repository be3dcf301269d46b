"""Exceptions that end training runs, with their reason and what to try: the table in ``crashes.toml``."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple

from watchglass.config import read_toml
from watchglass.records import Cause

_FILE = Path(__file__).with_name("crashes.toml")


class _Crash(NamedTuple):
    pattern: re.Pattern[str]
    cause: Cause


def cause_of_crash(kind: str, message: str) -> Cause | None:
    """The reason that an exception names, None where it names none.

    Args:
        kind: Class of the exception, with its module unless that is ``builtins``.
        message: Its message.
    """
    text = f"{kind}: {message}"
    return next((each.cause for each in _crashes() if each.pattern.search(text)), None)


@functools.cache
def _crashes() -> tuple[_Crash, ...]:
    """All of the table, in its order."""
    found = []
    for name, data in read_toml(_FILE, "file of crashes").items():
        cause = Cause(name, data["title"], data["explanation"].strip(), tuple(data["what_to_try"]))
        found.append(_Crash(re.compile(data["pattern"]), cause))
    return tuple(found)
