"""Accelerate, which advises the loop of PyTorch; the only package that imports it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from accelerate.accelerator import Accelerator

from watchglass.capture.advice import record_logged, when_made, wrap
from watchglass.capture.loops import Loop
from watchglass.capture.port import Port


class AcceleratorLoop(Loop):
    """Loops that call an ``Accelerator``: it knows the micro-batches of an update, and what the script logs.

    It has no way to end a loop: a stop raises in the loop, as with PyTorch alone.
    """

    name = "accelerate"

    def is_loop(self, value: object) -> bool:
        """Whether this is an accelerator."""
        return isinstance(value, Accelerator)

    def attach(self, port: Port, watched: Accelerator | None = None) -> None:
        """Listen to an accelerator, or to each that is made."""
        if watched is not None:
            _advise(port, watched)
        else:
            when_made(port, Accelerator, lambda made: _advise(port, made))
        wrap(port, Accelerator, "log", lambda accelerator: None, lambda _, arguments: _logged(port, arguments))


def _advise(port: Port, accelerator: Accelerator) -> None:
    reference = weakref.ref(accelerator)

    def batches_per_step() -> int:
        living = reference()
        return 1 if living is None else max(1, int(living.gradient_accumulation_steps))

    port.advice.batches_per_step = batches_per_step


def _logged(port: Port, arguments: Mapping[Any, Any]) -> None:
    values = arguments.get("values", arguments.get(0))
    if isinstance(values, Mapping):
        record_logged(port, values)
