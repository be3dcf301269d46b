"""Failures of a run."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: Kinds of failures.
KINDS = ("exception", "interrupt", "exit", "signal", "lost")


@dataclass(frozen=True)
class Failure:
    """The reason why a training process ended early or with an exit status that reports a failure."""

    #: ``"exception"``; ``"interrupt"`` (Ctrl-C); ``"exit"`` (an exit status other than 0); ``"signal"``; ``"lost"``
    #: (the process ended and reported nothing).
    kind: str
    #: Class of the exception, with its module unless that is ``builtins``: ``"ValueError"``,
    #: ``"torch.OutOfMemoryError"``; "" for none.
    type: str = ""
    #: Message of the exception, in one line of bounded length, without anything that looks like a secret.
    message: str = ""
    file: str = ""  #: Script or module of the user that raised it; "" if unknown.
    line: int = 0  #: Line of that file, counted from 1; 0 if unknown.
    source: str = ""  #: That line.
    exit_status: int | None = None  #: As a shell reports it, ``128 + n`` after signal ``n``; None if unknown.
    worker: str = ""  #: Worker of the process; "" if unknown.
    wall_ns: int = 0  #: Wall time of the failure, nanoseconds since 1970; 0 if unknown.
    #: The module of the model that was running, ``"layers.0.fc (Linear)"``; "" for none, or if unknown.
    module: str = ""
    #: Shapes and ranges of its inputs: ``"indices go from 0 to 120, the table has 100 rows"``; "" if unknown.
    figures: str = ""

    def to_json(self) -> dict[str, Any]:
        """This failure as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Failure | None:
        """The failure that :meth:`to_json` gave; None for other data. Unknown keys are ignored."""
        if not isinstance(data, Mapping) or data.get("kind") not in KINDS:
            return None
        texts = {
            name: data[name]
            for name in ("kind", "type", "message", "file", "source", "worker", "module", "figures")
            if isinstance(data.get(name), str)
        }
        numbers = {name: data[name] for name in ("line", "exit_status", "wall_ns") if type(data.get(name)) is int}
        return cls(**texts, **numbers)


def without_reason(exit_status: int) -> Failure:
    """The failure of a process that left only its exit status, other than 0, as a shell reports it."""
    kind = "signal" if exit_status > 128 else "exit"
    return Failure("interrupt" if exit_status == 128 + signal.SIGINT else kind)
