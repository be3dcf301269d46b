"""How many backward passes ran before the first training step, for a verdict on a run that has none."""

from __future__ import annotations

from typing import Any

from watchglass.capture.hook import Hook
from watchglass.capture.pytorch.public_calls import EVERY_BACKWARD


def count_early_backwards(hook: Hook) -> None:
    """Count the backward passes of all threads in ``hook.early_backwards`` until a training step has begun."""

    def count(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if hook.started:
            leave()
        else:
            hook.early_backwards += 1

    leave_once = [EVERY_BACKWARD.listen(hook.guard, before=count)]

    def leave() -> None:
        while leave_once:
            leave_once.pop()()

    hook.detach_with(leave)
