"""A model that is watched within limits of a test's choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from watchglass.capture import Hook, attach, loop
from watchglass.capture.limits import DEFAULT_LIMITS, CaptureLimits

#: The allowance for the start pays for captures on any machine, so that their steps depend on the steps' numbers alone.
PLENTY = replace(DEFAULT_LIMITS, allowance_ns=10**15)


@contextmanager
def watching_within(limits: CaptureLimits, model: nn.Module, run: Path, **settings: Any) -> Iterator[Hook]:
    """Watch a model as ``watchglass.watch`` does, with other limits; faults raise."""
    with Hook(run, limits=limits, strict=True, **settings) as hook:
        attach(hook.port, loop("torch"), model)
        yield hook
