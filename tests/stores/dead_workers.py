"""What a worker leaves that was killed: claims, segments and the flight recorder's rings."""

from __future__ import annotations

import platform
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from watchglass.record import Captured, OpenStep
from watchglass.record.flight_recorder import FlightRecorder
from watchglass.record.step_encoding import encode_steps
from watchglass.records import (
    FACTS,
    REDUCTIONS,
    SCALARS,
    STATISTICS,
    UNITS,
    Mode,
    Reduction,
    Role,
    TensorInfo,
    UnitKind,
)
from watchglass.stats import histograms_of, of_array
from watchglass.store import (
    Claim,
    LocalStore,
    Rings,
    SegmentWriter,
    claim_worker,
    create_attempt,
    create_run,
    encode_lifecycle,
    this_process,
)

TENSORS = [
    TensorInfo(1, "loss", Role.LOSS), TensorInfo(2, "learning_rate", Role.METRIC), TensorInfo(3, "w", Role.WEIGHT),
]  # fmt: skip
DEAD = 2**22 + 7  # more than a system gives


def step(number: int, mode: Mode = Mode.TRAIN) -> OpenStep:
    array = np.random.default_rng(number).normal(size=10)
    made = OpenStep(number, mode, number, number, 1000 * number + 10, updated=True, end_ns=1000 * number + 900)
    made.records.rows[SCALARS] = [(1, 4.0, 1.0 / (number + 1)), (2, 1.0, 0.1)]
    made.records.rows[STATISTICS] = [Captured([3], of_array(array)[None], False, histograms_of([array]))]
    made.records.rows[REDUCTIONS] = [(3, Reduction.MEDIAN, float(np.median(array)))]
    made.records.rows[UNITS] = [(3, UnitKind.INACTIVE, array < 0)]
    made.records.rows[FACTS] = [("seen", "test", {"number": number})]
    return made


def dead(rings: Rings, pid: int = DEAD, host: str = "") -> Claim:
    """A claim as of a process of this boot, which is gone unless ``pid`` lives."""
    return replace(this_process(), pid=pid, process_start=0, host=host or platform.node(), rings=rings.names)


class Ticks:
    """A clock that stands where the training was when it last wrote."""

    now = 0

    def monotonic_ns(self) -> int:
        return self.now

    def time_ns(self) -> int:
        return 10**18 + self.now


class DeadWorker:
    """What a worker leaves that was killed: some steps flushed, all of them in its rings, of which rows lie beside it.

    Args:
        path: The run.
        host: Its machine; this one if "".
        pid: Its process.
        named: It has named its tensors.
        memory: The file system in memory; a folder beside the run if None.
        rotate_bytes: Segments end at so many bytes.
    """

    def __init__(
        self,
        path: Path,
        *,
        host: str = "",
        pid: int = DEAD,
        named: bool = True,
        memory: Path | None = None,
        rotate_bytes: int = 8 << 20,
    ) -> None:
        self.store = LocalStore(path)
        run_id = create_run(self.store, command=[]).run_id
        create_attempt(self.store, "")
        self.label = {"run": run_id, "attempt": 0, "worker": "worker_0"}
        self.memory = memory or path.parent / "memory"
        if memory is None:
            self.memory.mkdir(exist_ok=True)
        self.rings = Rings(self.store, self.label, self.memory)
        claim = dead(self.rings, pid, host)
        claim_worker(self.store, 0, "worker_0", claim)
        self.flight = FlightRecorder()
        self.flight.open(self.rings)
        self.clock = Ticks()
        self.writer = SegmentWriter(self.store, 0, "worker_0", clock=self.clock, rotate_bytes=rotate_bytes)
        self.writer.write([encode_lifecycle({**asdict(claim), "event": "joined", "worker": "worker_0"})])
        for tensor in TENSORS:
            self.flight.name_tensor(tensor)
        if named:
            self.flight.keep([], TENSORS)

    def train(self, numbers: range, *, kept: bool = True) -> list[OpenStep]:
        steps = [step(number) for number in numbers]
        for made in steps:
            self.clock.now = made.end_ns + 50
            self.flight.finished(made)
        if kept:
            self.flight.keep(steps, [])
        return steps

    def flush(self, steps: list[OpenStep], tensors: list[TensorInfo]) -> list[bytes]:
        frames = encode_steps(steps, tensors, lambda raw: [])
        self.writer.write(frames)
        return frames

    def die(self) -> None:
        self.flight.close(discard=False)
