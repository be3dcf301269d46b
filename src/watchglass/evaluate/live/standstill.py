"""Tells the user that a run completes no step any more, and where its threads stand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from watchglass.config import EvaluatorTiming
from watchglass.evaluate.engine.observing import tick_of
from watchglass.evaluate.follower import FollowedWorker
from watchglass.records import Mode, Observation, facts
from watchglass.rules import frames_of, place_of, standing
from watchglass.tables import StepView
from watchglass.view import duration, printable

#: First steps in which a compiled model may stand still this many times as long.
_COMPILING, _TIMES = 64, 10


@dataclass
class _Silence:
    """The time since the last complete step of a group of workers."""

    steps: int  #: Its complete steps.
    longest_s: float = 0.0  #: Longest silence before this one.
    seconds: float = 0.0  #: Its length so far.
    places: dict[str, str] = field(default_factory=dict)  #: Where workers stand.
    told: str = ""  #: The sentence about the step with which the silence was reported; "" before.


class Standstill:
    """A notice, not a finding: a script may also work for long after its training. For one thread.

    Args:
        report: Takes a sentence.
        timing: How long a run may stand still.
    """

    def __init__(self, report: Callable[[str], None], timing: EvaluatorTiming) -> None:
        self._report, self._timing = report, timing
        self._silences: dict[tuple[int, str], _Silence] = {}
        # The number and the end of the step that was the newest one when a worker was first looked at.
        self._first: dict[tuple[int, str], tuple[int, int]] = {}

    def look(self, ticks: Iterable[Observation], workers: Collection[FollowedWorker]) -> None:
        """Take in ticks, and report a silence that has become long."""
        for tick in ticks:
            group = [each for each in workers if (each.attempt, each.group) == (tick.attempt, tick.group)]
            silence, seen = self._silence(tick), tick_of(tick, "")
            silence.seconds = seen.silent_s
            for worker, stacks in seen.stacks.items():
                if frames := frames_of(stacks):
                    silence.places[worker] = place_of(frames)
            view = next((each.views[0] for each in group if each.views), None)
            limit_s = max(self._limit_s(group), 2 * silence.longest_s)
            # Without stacks it waits longer: a process that holds the interpreter's lock cannot show them at once.
            if view is None or silence.told or silence.seconds < limit_s * (1 if silence.places else 2):
                continue
            silence.told = _after(view)
            self._report(
                f"no step for {duration(silence.seconds)} after {silence.told}; {_place(silence, 'it stands')}"
            )

    def end(self, workers: Collection[FollowedWorker]) -> None:
        """Report a silence in which a run ended without having finished."""
        for (attempt, group), silence in self._silences.items():
            members = [each for each in workers if (each.attempt, each.group) == (attempt, group)]
            went_on = any(each.moments.shown != silence.steps for each in members)
            finished = all(each.left is not None and each.left.get("status") == "finished" for each in members)
            if silence.told and not went_on and not finished:
                said = f"the run ended in a silence of more than {duration(silence.seconds)} after {silence.told}"
                self._report(f"{said}; {_place(silence, 'it stood')}")

    def _silence(self, tick: Observation) -> _Silence:
        key = tick.attempt, tick.group
        silence = self._silences.get(key)
        if silence is None or silence.steps != tick.steps:
            longest_s = 0.0 if silence is None else max(silence.longest_s, silence.seconds if silence.told else 0.0)
            silence = self._silences[key] = _Silence(tick.steps, longest_s)
        return silence

    def _limit_s(self, group: Collection[FollowedWorker]) -> float:
        usual_s, times = 0.0, 1
        for worker in group:
            for view in worker.views[:1]:
                steps, ended_ns = self._first.setdefault((worker.attempt, worker.worker), (worker.ended, view.end_ns))
                between_ns = (view.end_ns - ended_ns) / max(worker.ended - steps, 1)
                usual_s = max(usual_s, between_ns / 1e9, (view.end_ns - view.start_ns) / 1e9)
                model = view.latest_fact(facts.ModelDescription)
                if model is not None and model.compiled and view.model_step < _COMPILING:
                    times = _TIMES
        return times * max(self._timing.standstill_s, self._timing.standstill_steps * usual_s)


def _after(view: StepView) -> str:
    return f"step {view.mode_step}" + ("" if view.mode is Mode.TRAIN else f" of {view.mode.name}")


def _place(silence: _Silence, alone: str) -> str:
    said = printable(standing(silence.places)) or "no stack could be read"
    return said.replace("it stands", alone, 1).replace("all stand", "all stood", 1) if alone == "it stood" else said
