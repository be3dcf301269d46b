"""Training runs for tests of rules about time, made of numbers: steps with phases, and samples of metrics."""

from __future__ import annotations

from typing import Any

from watchglass.records import PHASE_NAMES, PHASES, Mode
from watchglass.testing import Step


def phased(mode: Mode = Mode.TRAIN, facts: Any = (), **seconds: float) -> Step:
    """A step whose phases take these seconds; those that are not given take none."""
    row = [seconds.pop(f"{name}_s", 0.0) for name in PHASE_NAMES]
    assert not seconds
    return Step(scalars={"loss": 1.0}, rows={PHASES: [row]}, seconds=sum(row), mode=mode, facts=facts)


def loader(workers: int, batches: int = 100, name: str = "loader") -> dict[str, Any]:
    """The fact of a data loader."""
    return {"data_loader": {"loader": name, "num_workers": workers, "batches": batches}}
