"""Which exception ended a training: its processes write a line each into a file that the launcher reads and deletes."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from watchglass.config import open_regular
from watchglass.records import Failure

#: Bytes that are read: some hundred lines.
_MOST_BYTES = 1 << 20


class _UncaughtException(NamedTuple):
    """A line: what ended a process, whether the launcher started it, and whether it trained or was a rank."""

    failure: Failure
    first: bool
    trains: bool


class Failures:
    """The file of one launch. It is there only once a process of the launch has failed.

    It lies on this machine also where the run does not: whoever dies should not have to reach a bucket.

    Attributes:
        path: Where it is, under a name that cannot be guessed.
        told: What the environment of the training says of it: the mark before the path is for its first process, which
            takes it off for its children.
    """

    def __init__(self) -> None:
        self.path = os.path.join(tempfile.gettempdir(), f"watchglass-failures-{os.urandom(16).hex()}")
        self.told = f"+{self.path}"

    def take(self, exit_status: int) -> Failure | None:
        """Why the training ended, None where it ended well; the file is gone afterwards.

        Args:
            exit_status: How the process that the launcher started ended, as a shell calls it.
        """
        told = self._told()
        with suppress(OSError):
            os.unlink(self.path)
        return None if exit_status == 0 else replace(_reason(told, exit_status), exit_status=exit_status)

    def _told(self) -> list[_UncaughtException]:
        try:
            with open(open_regular(self.path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
                lines = file.read(_MOST_BYTES).splitlines()
        except OSError:
            return []
        return [told for told in map(_line, lines) if told is not None]


def _reason(told: list[_UncaughtException], exit_status: int) -> Failure:
    """The earliest exception of a process that trains or is a rank, else that of the process that was started.

    Launchers of ranks (torchrun, ``mp.spawn``) fail because one of these did. What another helper process died of says
    nothing about the run.
    """
    meant = sorted((each for each in told if each.trains or each.first), key=lambda each: each.failure.wall_ns)
    if meant and (exit_status < 128 or any(each.first for each in meant)):
        return meant[0].failure
    return Failure("signal" if exit_status > 128 else "exit")


def _line(line: bytes) -> _UncaughtException | None:
    try:
        table: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    failure = Failure.from_json(table)
    return (
        None
        if failure is None
        else _UncaughtException(failure, table.get("first") is True, table.get("trains") is True)
    )
