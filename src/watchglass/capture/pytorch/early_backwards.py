"""How many backward passes ran before the first training step, for a verdict on a run that has none."""

from __future__ import annotations

from typing import Any

from watchglass.capture.port import Port
from watchglass.capture.pytorch.public_calls import EVERY_BACKWARD


def count_early_backwards(port: Port) -> None:
    """Count the backward passes of all threads in ``port.early_backwards`` until a training step has begun."""

    def count(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if port.started:
            leave()
        else:
            port.early_backwards += 1

    leave_once = [EVERY_BACKWARD.listen(port.guard, before=count)]

    def leave() -> None:
        while leave_once:
            leave_once.pop()()

    port.detach_with(leave)
