"""Runs of one worker that are written while they are followed, step by step, by the real encoders and writer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from simulated_runs import Tensors, flush_frames, with_scalars
from watchglass.records import Fact
from watchglass.store import (
    LocalStore,
    SegmentWriter,
    Store,
    claim_worker,
    create_attempt,
    create_run,
    encode_catalog,
    encode_facts,
    encode_lifecycle,
    release_worker,
    this_process,
)

WORKER = "worker_0"


@dataclass
class Run:
    """A run that is written step by step, of one worker that lives in this process.

    Attributes:
        store: An empty store.
        tensors: Tensors of each captured step; 0 for scalars only.
        sick: Whether the loss has diverged and updates overthrow the weights, so that every step has findings.
    """

    store: Store
    tensors: int
    sick: bool = False
    step: int = 0
    _writer: SegmentWriter = field(init=False)
    _tensors: Tensors = field(init=False)

    def __post_init__(self) -> None:
        create_run(self.store, command=["train.py"])
        attempt = create_attempt(self.store, "")
        self._process = this_process()
        claim_worker(self.store, attempt, WORKER, self._process)
        self._writer = SegmentWriter(self.store, attempt, WORKER)
        self._event({"event": "joined"})
        self._tensors = Tensors(self.tensors)
        infos = self._tensors.catalog()
        modules = {info.module: info.module_type for info in infos if info.module}
        optimizer = {"type": "AdamW", "groups": [{"lr": 1e-3}]}
        kinds = {info.module: info.module_kind for info in infos if info.module}
        model = {"roots": ["Decoder"], "module_types": modules, "module_kinds": kinds}
        facts = [Fact("model", -1, "simulated", model), Fact("optimizer", -1, "simulated", optimizer)]
        self._writer.write([encode_catalog(with_scalars(infos)), encode_facts(facts)])

    def write(self, steps: int) -> None:
        """The next steps in one flush."""
        span = range(self.step, self.step + steps)
        numbers = np.arange(span.start, span.stop, dtype=np.float64)
        losses = 10.0 * np.minimum(1e6, 1.0 + numbers) if self.sick else 2.0 + 8.0 * np.power(0.999, numbers)
        self._writer.write(flush_frames(self._tensors, span, losses, scalars=True, updates=16.0 if self.sick else 0.0))
        self.step = span.stop

    def close(self) -> None:
        """The worker leaves."""
        self._event({"event": "left", "status": "finished", "reason": "", "counters": {}})
        self._writer.close()
        release_worker(self.store, 0, WORKER)

    def _event(self, event: dict[str, Any]) -> None:
        about = {"worker": WORKER, "time_ns": 0, "wall_ns": 0, "pid": self._process.pid}
        self._writer.write([encode_lifecycle({**event, **about})])


def write_run(folder: Path, tensors: int, steps: int, per_flush: int, *, sick: bool = False) -> LocalStore:
    """A whole run in a folder, ``per_flush`` captured steps a flush."""
    store = LocalStore(folder)
    run = Run(store, tensors, sick)
    for begin in range(0, steps, per_flush):
        run.write(min(per_flush, steps - begin))
    run.close()
    return store
