"""Tests that every source of phases must pass, built in or custom: describe a tiny training case and derive a class.

Example::

    class MyCase(PhaseCase):
        def attach(self, hook): ...
        def train(self, steps):
            for _ in range(steps):
                self.spend(StepPhase.DATA)
                ...

    class TestMyPhases(PhaseSuite):
        source = MyPhases
        case = MyCase
"""

from __future__ import annotations

import gc
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from watchglass.capture import Hook, PhaseSource
from watchglass.records import PHASE_NAMES, Mode, StepPhase
from watchglass.run import Phases, open_run

_MILLISECOND_NS = 1_000_000
#: Steps of each test. Those that are alike go another way in some adapters after a while.
_STEPS, _EVALUATIONS = 24, 5


class PhaseCase(ABC):
    """A tiny training loop in one framework that spends time in its phases; each instance starts again.

    Args:
        spend: To be called once per step with each phase of the source, where this phase is under way, and with OTHER
            after the update; with COPY inside a copy. It stands for work of the script, the model or the data.
    """

    def __init__(self, spend: Callable[[StepPhase], None]) -> None:
        self.spend = spend

    @abstractmethod
    def attach(self, hook: Hook) -> None:
        """Watch the model, as ``watch`` does."""

    @abstractmethod
    def train(self, steps: int) -> None:
        """Update ``steps`` times."""

    def evaluate(self, steps: int) -> frozenset[StepPhase]:
        """Evaluate so many steps, and spend time in phases; returns these, none if the framework cannot evaluate."""
        return frozenset()


class PhaseSuite(ABC):
    """Conformance of a source of phases. Derive and set both attributes."""

    #: The source.
    source: ClassVar[type[PhaseSource]]
    #: The case that its adapter watches.
    case: ClassVar[type[PhaseCase]]

    def hook(self, path: Path, **settings: Any) -> Hook:
        """A hook that records phases, captures some steps and raises on faults."""
        return Hook(path, **{"profiler": True, "save_interval": 16, "strict": True, **settings})

    def test_each_load_is_found_in_its_phase(self, tmp_path: Path) -> None:
        """By a clock that only the loads move, the time of each phase is exactly that of its load."""
        clock = _LoadClock()
        with self.hook(tmp_path / "run") as hook:
            hook.port.phase_clock = clock
            case = self.case(clock.spend)
            case.attach(hook)
            case.train(_STEPS)
            evaluated = case.evaluate(_EVALUATIONS)
        run = open_run(tmp_path / "run")
        phases = run.phases()
        _equal(len(phases), _STEPS, "TRAIN steps with phases")
        # The first step begins in the middle of what came before it.
        self._assert_spent(phases, range(1, _STEPS), frozenset(StepPhase))
        if evaluated:
            found = run.phases(Mode.EVAL)
            _equal(len(found), _EVALUATIONS, "EVAL steps with phases")
            self._assert_spent(found, range(1, _EVALUATIONS), evaluated)

    def _assert_spent(self, phases: Phases, rows: range, loaded: frozenset[StepPhase]) -> None:
        spent = loaded & (self.source.phases | {StepPhase.OTHER})
        for phase in StepPhase:
            wanted = _load_ns(phase) / 1e9 if phase in spent else 0.0
            found = phases[PHASE_NAMES[phase]][rows.start : rows.stop]
            np.testing.assert_allclose(found, wanted, rtol=1e-6, err_msg=f"{phases.mode.name}: {phase.name}")

    def test_phases_add_up_to_the_wall_time_of_the_step(self, tmp_path: Path) -> None:
        """Their sum is the time since the end of the step before, to 2 %, also where a copy is a part of it."""
        with self.hook(tmp_path / "run") as hook:
            case = self.case(lambda phase: None)
            case.attach(hook)
            case.train(_STEPS)
        run = open_run(tmp_path / "run")
        ended = run.worker().tables.steps.log.latest["end_ns"].astype(np.int64)
        phases = run.phases()
        np.testing.assert_allclose(phases.seconds[1:], np.diff(ended) / 1e9, rtol=0.02)
        copied = bool((phases["copy"][1:] > 0).all())
        _equal(copied, StepPhase.COPY in self.source.phases, "whether each step has time of copies")

    def test_nothing_is_marked_without_the_profiler(self, tmp_path: Path) -> None:
        """The clock is never read, and the run has no phases."""
        clock = _LoadClock()
        self._train(tmp_path / "run", clock, profiler=False)
        recorded = len(open_run(tmp_path / "run").phases())
        _equal((clock.reads, recorded), (0, 0), "readings of the clock, and steps with phases")

    def test_a_fault_in_a_mark_does_not_reach_the_training_run(self, tmp_path: Path) -> None:
        """The clock fails once, at its first, a middle, or its last reading: all updates are made."""
        clock = _LoadClock()
        with _no_garbage_collection():
            self._train(tmp_path / "whole", clock)
            for failing in (1, clock.reads // 2, clock.reads):
                broken = _LoadClock(failing)
                self._train(tmp_path / str(failing), broken, strict=False)
                _equal(broken.reads, failing, "readings of the clock, of which the last one failed")
                _equal(broken.now_ns, clock.now_ns, "time that the loads of all steps spent")

    def test_a_closed_hook_gets_no_marks(self, tmp_path: Path) -> None:
        """What was put into the framework is undone."""
        clock = _LoadClock()
        hook = self.hook(tmp_path / "run")
        hook.port.phase_clock = clock
        case = self.case(clock.spend)
        case.attach(hook)
        case.train(3)
        hook.close()
        read = clock.reads
        case.train(3)
        _equal(clock.reads, read, "readings of the clock")

    def test_other_threads_put_no_marks(self, tmp_path: Path) -> None:
        """A loop in a thread of the script beside the training thread delays no step."""
        clock = _LoadClock()
        with _no_garbage_collection(), self.hook(tmp_path / "run") as hook:
            hook.port.phase_clock = clock
            case, other = self.case(clock.spend), self.case(lambda phase: None)
            case.attach(hook)
            case.train(3)
            read = clock.reads
            thread = threading.Thread(target=other.train, args=(3,))
            thread.start()
            thread.join()
            _equal(clock.reads, read, "readings of the clock")

    def _train(self, path: Path, clock: _LoadClock, **settings: Any) -> None:
        with self.hook(path, **settings) as hook:
            hook.port.phase_clock = clock
            case = self.case(clock.spend)
            case.attach(hook)
            case.train(_STEPS)


class _LoadClock:
    """A clock in nanoseconds that only loads move.

    Args:
        failing: The reading that raises, counted from 1; 0 for none.
    """

    def __init__(self, failing: int = 0) -> None:
        self.now_ns = _MILLISECOND_NS
        self.reads = 0
        self._failing = failing

    def __call__(self) -> int:
        self.reads += 1
        if self.reads == self._failing:
            raise RuntimeError("broken on purpose")
        return self.now_ns

    def spend(self, phase: StepPhase) -> None:
        """A load in this phase: of each phase another time."""
        self.now_ns += _load_ns(phase)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Where readings of the clock are counted: a collection is a pause, and its beginning and end are read, too."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _load_ns(phase: StepPhase) -> int:
    return (int(phase) + 1) * _MILLISECOND_NS


def _equal(found: Any, wanted: Any, what: str) -> None:
    assert found == wanted, f"{what}: {found!r} instead of {wanted!r}"
