"""The configuration of a process that runs beside a training run: one line of JSON on its standard input."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, ClassVar, TypeVar

from watchglass.config.locations import absolute
from watchglass.records import as_json, from_json

_Config = TypeVar("_Config", bound="ProcessConfig")


@dataclass(frozen=True)
class ProcessConfig(ABC):
    """The settings that a process beside a training run reads at its start."""

    title: ClassVar[str]  #: The name of the process in messages, ``"the evaluator"``.
    module: ClassVar[str]  #: The module that python runs.
    speaks: ClassVar[bool] = True  #: Whether it writes for the user, on the standard error of its starter.

    run: str  #: Location of the run: a folder, or an address like ``s3://bucket/path``; "" if not known yet.

    @property
    @abstractmethod
    def termination_s(self) -> float:
        """Seconds that the process has to end after a signal."""

    def to_line(self) -> str:
        """One line of JSON, with the whole path of the run."""
        return json.dumps(as_json(replace(self, run=absolute(self.run))))

    @classmethod
    def from_line(cls: type[_Config], text: str) -> _Config:
        """The configuration that :meth:`to_line` gave."""
        return from_json(cls, json.loads(text))

    def send(self, stdin: IO[bytes]) -> None:
        """Write this as the first line of the standard input of the process, which stays open as its lifeline.

        Not in its command line or environment, which other users can read. The process may have ended already.
        """
        with suppress(BrokenPipeError, ConnectionResetError):
            stdin.write(self.to_line().encode() + b"\n")
            stdin.flush()
