"""The exception that ended a run, and what was seen of frameworks by processes that recorded nothing.

Each process writes a line to a file, which the launcher reads and deletes.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from watchglass.config import open_regular
from watchglass.records import Failure, Sighting, without_reason

#: Largest number of bytes that are read: some hundred lines.
_MOST_BYTES = 1 << 20


class _UncaughtException(NamedTuple):
    """A line: the failure of a process, whether the launcher started it, and whether it trained or was a rank."""

    failure: Failure
    first: bool
    trains: bool


class Failures:
    """The file of one launch: made here, so that a process that outlives the launch makes none.

    It is always on this machine, so that a dying process need not reach an object store.
    """

    def __init__(self) -> None:
        #: Its path, with a name that cannot be guessed.
        self.path = os.path.join(tempfile.gettempdir(), f"watchglass-failures-{os.urandom(16).hex()}")
        #: Its environment variable: the path after a mark for the first process, which removes the mark for its
        #: children.
        self.variable = f"+{self.path}"
        with suppress(OSError):  # without a file, the exit status remains
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

    def close(self) -> None:
        """Delete the file."""
        with suppress(OSError):
            os.unlink(self.path)

    def take(self, exit_status: int) -> tuple[Failure | None, Sighting | None]:
        """The failure of the run, None for exit status 0, and what was seen of frameworks; deletes the file.

        Args:
            exit_status: Exit status of the process that the launcher started, as a shell reports it.
        """
        lines = self._read()
        self.close()
        exceptions = [exception for exception in map(_exception, lines) if exception is not None]
        failure = None if exit_status == 0 else replace(_reason(exceptions, exit_status), exit_status=exit_status)
        sightings = (Sighting.from_json(line.get("sighting")) for line in lines)
        return failure, Sighting.of_all(each for each in sightings if each is not None)

    def _read(self) -> list[dict[str, Any]]:
        try:
            with open(open_regular(self.path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
                lines = file.read(_MOST_BYTES).splitlines()
        except OSError:
            return []
        return [table for table in map(_table, lines) if isinstance(table, dict)]


def _reason(exceptions: list[_UncaughtException], exit_status: int) -> Failure:
    """The earliest exception of a process that trains, is a rank, or was started by the launcher.

    Launchers of ranks (torchrun, ``mp.spawn``) fail after one of these. The exception of a helper process does not
    explain the failure of the run.
    """
    meant = sorted((each for each in exceptions if each.trains or each.first), key=lambda each: each.failure.wall_ns)
    if meant and (exit_status < 128 or any(each.first for each in meant)):
        return meant[0].failure
    return without_reason(exit_status)


def _table(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _exception(table: dict[str, Any]) -> _UncaughtException | None:
    failure = Failure.from_json(table)
    if failure is None:
        return None
    return _UncaughtException(failure, table.get("first") is True, table.get("trains") is True)
