"""The configuration of a process that runs beside a training run: one line of JSON on its standard input."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import IO, ClassVar


class ProcessConfig(ABC):
    """The settings that a process beside a training run reads at its start.

    Attributes:
        title: The name of the process in messages, ``"the evaluator"``.
        module: The module that python runs.
        speaks: Whether it writes for the user, on the standard error of its starter.
    """

    title: ClassVar[str]
    module: ClassVar[str]
    speaks: ClassVar[bool] = True

    @property
    @abstractmethod
    def termination_s(self) -> float:
        """Seconds that the process has to end after a signal."""

    @abstractmethod
    def plain(self) -> object:
        """All values as JSON types."""

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(self.plain())

    def send(self, stdin: IO[bytes]) -> None:
        """Write this as the first line of the standard input of the process, which stays open as its lifeline.

        Not in its command line or environment, which other users can read. The process may have ended already.
        """
        with suppress(BrokenPipeError, ConnectionResetError):
            stdin.write(self.to_line().encode() + b"\n")
            stdin.flush()
