"""StepOutlier: single steps take far longer than the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from watchglass.config import parameter
from watchglass.records import (
    PAUSES,
    PHASE_NAMES,
    PHASES,
    Finding,
    Mode,
    Pause,
    Severity,
    count,
    facts,
    in_percent,
    rounded,
)
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.sagemaker.step_outlier import StepOutlier as Documented
from watchglass.rules.streaks import Streaks
from watchglass.tables import StepView

#: First steps, which compile, allocate and fill caches; steps of the median; steps after which it is computed again.
_FIRST, _RECENT, _AGAIN = 16, 64, 16
#: Numbers of outliers that are kept; outliers in a row after which steps are slower for good.
_KEPT, _FOR_GOOD = 16, 16
#: The share of their additional time that a pause takes, if it is the reason (house). Around `torch.save`, a checkpoint
#: copies, flushes and uploads.
_REASON = {Pause.COLLECTION: 0.5, Pause.SAVE: 0.25, Pause.PROFILE: 0.5}
_SYMPTOMS = {"data": "outliers_wait_for_data", "other": "outliers_between_steps"}
_SYMPTOMS_OF_PAUSES = {
    Pause.COLLECTION: "outliers_collect_garbage", Pause.SAVE: "outliers_save", Pause.PROFILE: "outliers_profile",
}  # fmt: skip
_PAUSES = {
    Pause.COLLECTION: "garbage collection", Pause.SAVE: "torch.save",
    Pause.PROFILE: "PyTorch's profiler (its start, stop, export or sums)",
}  # fmt: skip
_DOES = {
    Pause.COLLECTION: "Python collected garbage", Pause.SAVE: "torch.save wrote",
    Pause.PROFILE: "PyTorch's profiler began, ended, exported or summed up",
}  # fmt: skip
_WHERE = {
    "data": "waiting for data", "prepare": "between the arrival of a batch and the call of the model",
    "copy": "copying to the device",
    "forward": "in the forward", "backward": "in the backward", "update": "in the update",
    "compute": "in the compiled step", "other": "between an update and the next batch",
}  # fmt: skip


class StepOutlier(Rule):
    """Steps that take far longer than the others, or are stopped often, cost much of the time.

    Looks at: the phases of training steps, and evaluations before them.
    Fires when: more than `n_outliers` times a step took more than `factor` times the median of the last steps, and
        `least` seconds more than it, and together these steps cost at least `cost` percent of the time of all steps.
        Or such pauses as below, in more than `n_outliers` steps, cost as much, although these steps are no outliers: a
        pause that is the reason cost what the step took beyond the median. Outliers in a row count once. The phase that
        grew most in them is named; garbage collections or PyTorch's profiler in the training thread, if they took half
        of the additional time, or calls of `torch.save`, if they took a quarter, and in half of these steps; and
        whether outliers come at equal distances or after evaluations. The gain is an upper bound: outliers as fast as
        the median. Sixteen outliers in a row are an `info`: since which step, in which phase, and whether watchglass
        looks for the first bad module in them. It joins the diagnosis of values that became NaN or infinite at that
        step.
    Usual causes: checkpoints, logging or evaluations by hand between steps; a loader that starts its workers again in
        each epoch; garbage collection; `torch.profiler` in the loop of the script; code that compiles for new shapes;
        other programs on the machine.
    What to try: `persistent_workers=True`; checkpoints less often, or in another thread; `gc.freeze()` after the
        start.
    Costs: nothing in addition to the phases of steps, which are recorded under a launcher.
    Source: house. SageMaker Debugger compares with the mean and the standard deviation, which outliers move: its
        condition is that of calibration `sagemaker`.
    """

    needs = (
        Needs(rows=(PHASES,), why="to see where the time of a long step goes"),
        Needs(facts=("modules_examined", "first_bad_module"), optional=True),
    )
    calibrations: ClassVar = {"sagemaker": Documented}

    factor: float = parameter(5.0, help="how many times the median an outlier takes", unit="ratio", gt=1)
    least: float = parameter(0.05, help="how much more than the median it takes", unit="s", ge=0)
    n_outliers: int = parameter(3, help="outliers without a finding", unit="steps", ge=0)
    cost: float = parameter(10.0, help="least share of the time of all steps that they cost", unit="%", ge=0, le=100)

    seen: int = state(int)
    #: Seconds by phase of the last steps, and their medians with that of the whole step.
    recent: list[list[float]] = state(list)
    usual: list[float] = state(list)
    #: Seconds of all steps that were compared, and what outliers took beyond the median, by phase.
    whole: float = state(float)
    beyond: list[float] = state(lambda: [0.0] * len(PHASE_NAMES))
    #: Seconds of outliers in which garbage was collected, and in which `torch.save` wrote, by name.
    paused: dict[str, float] = state(dict)
    #: Number of outliers with such a pause that is the reason of their length, by name, and of all slow steps.
    with_reason: dict[str, int] = state(dict)
    slow: int = state(int)
    #: By name of a pause: number of steps with it, what it cost in seconds, and the last of these steps.
    stopped: dict[str, list[Any]] = state(dict)
    #: Number of outliers, of those after an evaluation, and the last of their steps.
    count: int = state(int)
    evaluated: int = state(int)
    steps: list[int] = state(list)
    outliers: Streaks = state(Streaks)
    #: The step since which watchglass examines every module; -1 where it does not.
    examined: int = state(lambda: -1)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at an outlier."""
        phases = view.rows(PHASES)
        if view.mode is not Mode.TRAIN or not phases:
            return
        seconds = list(phases[0])
        self._note_examined(view)
        self.seen += 1
        if self.seen <= _FIRST:
            return
        outlier = self._is_outlier(sum(seconds))
        if self.usual:
            self.whole += sum(seconds)
        if outlier:
            self.beyond = [
                so_far + max(0.0, s - usual) for so_far, s, usual in zip(self.beyond, seconds, self.usual, strict=False)
            ]
            self.slow += 1
            for pause, _, spent in view.rows(PAUSES):
                self.paused[pause.name] = self.paused.get(pause.name, 0.0) + spent
                enough = spent >= _REASON[pause] * (sum(seconds) - self.usual[-1])
                self.with_reason[pause.name] = self.with_reason.get(pause.name, 0) + enough
            if not self.outliers.times():
                self._count(view)
                yield from self._judged(view)
        yield from self._pauses(view, sum(seconds), outlier=outlier)
        times, since = self.outliers.follow(view.mode_step, outlier), self.outliers.since()
        if times == _FOR_GOOD and since is not None:
            yield self._slower(view, since, np.median([*self.recent[1 - _FOR_GOOD :], seconds], axis=0))
        self.recent = [*self.recent[1 - _RECENT :], seconds]
        if self.seen % _AGAIN == 0:
            rows = np.array(self.recent)
            self.usual = [*np.median(rows, axis=0).tolist(), float(np.median(rows.sum(1)))]

    def applicable(self, view: StepView) -> str:
        """Not for runs that are too short for a median."""
        few = self.seen and not self.usual
        return f"the run has {count(self.seen, 'training step')}; {_FIRST + _AGAIN} are needed" if few else ""

    def _is_outlier(self, seconds: float) -> bool:
        return bool(self.usual) and seconds > max(self.factor * self.usual[-1], self.usual[-1] + self.least)

    def _count(self, view: StepView) -> None:
        self.count += 1
        self.evaluated += any(stretch.mode is Mode.EVAL for stretch in view.stretches)
        self.steps = [*self.steps[1 - _KEPT :], view.model_step]

    def _judged(self, view: StepView) -> Iterable[Finding]:
        lost = sum(self.beyond)
        if not self._enough(self.count, lost):
            return
        percent, gain = 100 * lost / self.whole, self.whole / (self.whole - lost)
        phase = PHASE_NAMES[int(np.argmax(self.beyond))]
        pause = next((each for each in Pause if self._is_reason(each, lost)), None)
        ms = 1000 * self.usual[-1]
        reason = (
            f", where {_PAUSES[pause]} took {self.paused[pause.name]:.2g} s of {lost:.2g} s"
            if pause is not None
            else ""
        )
        symptom = _SYMPTOMS.get(phase, "outliers_in_steps") if pause is None else _SYMPTOMS_OF_PAUSES[pause]
        yield self.finding(
            view,
            subject=phase,
            value=percent,
            limit=self.cost,
            message=f"{self.count} training steps took more than {self.factor:g} times the median of {ms:.3g} ms, "
            f"mostly {_WHERE[phase]}{reason}{self._rhythm()}; they cost {in_percent(percent / 100)} of the time, so "
            f"without them "
            f"steps are at most {rounded(gain, 1)} times as fast",
            symptoms=(symptom,),
            evidence={
                "gain": gain, "phase": phase, "steps": self.steps, "after_evaluation": self.evaluated,
                "paused_s": self.paused, "usual_s": self.usual[-1], "distance": _distance(self.steps),
            },
        )  # fmt: skip

    def _pauses(self, view: StepView, taken: float, *, outlier: bool) -> Iterable[Finding]:
        """Pauses that come so often that their steps are no outliers, or that are too short for it."""
        for pause, _, spent in view.rows(PAUSES) if self.usual else ():
            more = taken - self.usual[-1]
            is_reason = spent >= _REASON[pause] * more
            if outlier and not is_reason:
                continue
            # Around the pause, the script does more for it.
            cost = max(spent, more) if is_reason else spent
            number, cost_s, steps = self.stopped.get(pause.name, [0, 0.0, []])
            number, cost_s, steps = number + 1, cost_s + cost, [*steps[1 - _KEPT :], view.model_step]
            self.stopped[pause.name] = [number, cost_s, steps]
            lost = sum(self.beyond)
            # That of outliers is a part of their finding.
            if not self._enough(number, cost_s) or (self._enough(self.count, lost) and self._is_reason(pause, lost)):
                continue
            percent, gain = 100 * cost_s / self.whole, self.whole / (self.whole - cost_s)
            yield self.finding(
                view,
                subject=_PAUSES[pause],
                value=percent,
                limit=self.cost,
                message=f"{_DOES[pause]} in {count(number, 'training step')}{_rhythm(steps)}, which cost {cost_s:.2g} "
                f"s, {in_percent(percent / 100)} of the time, so without that steps are at most {rounded(gain, 1)} "
                f"times as fast",
                symptoms=(_SYMPTOMS_OF_PAUSES[pause],),
                evidence={
                    "gain": gain,
                    "steps": steps,
                    "paused_s": {pause.name: cost_s},
                    "distance": _distance(steps),
                },
            )

    def _enough(self, number: int, lost: float) -> bool:
        """Whether this number of steps is more than accidents, and this time is much."""
        least = max(self.cost / 100 * self.whole, (self.n_outliers + 1) * self.least)
        return number > self.n_outliers and least <= lost < self.whole

    def _is_reason(self, pause: Pause, lost: float) -> bool:
        """A single long pause explains one outlier, not the others."""
        often = 2 * self.with_reason.get(pause.name, 0) >= self.slow
        return often and self.paused.get(pause.name, 0.0) >= _REASON[pause] * lost

    def _slower(self, view: StepView, since: int, now: NDArray[np.float64]) -> Finding:
        """What is so for good has a reason or none; with values that became bad at the same step it is no accident."""
        whole, before = float(now.sum()), self.usual[-1]
        phase = PHASE_NAMES[int(np.argmax(now - self.usual[:-1]))]
        ours = 0 <= self.examined <= since <= self.examined + 1
        searched = "; in these steps watchglass examines every module, to find the first bad one" if ours else ""
        return self.finding(
            view,
            severity=Severity.INFO,
            subject="for good",
            value=whole / before,
            limit=self.factor,
            message=f"training steps take {whole / before:.2g} times as long since step {since}: "
            f"{1000 * whole:.3g} ms in place of {1000 * before:.3g} ms, mostly {_WHERE[phase]}{searched}",
            symptoms=("steps_slower_for_good",),
            evidence={"phase": phase, "modules_examined": ours, "before_s": before, "now_s": whole},
            since=since,
        )

    def _note_examined(self, view: StepView) -> None:
        if view.facts(facts.ModulesExamined):
            self.examined = view.mode_step
        if any(found.level == "next_steps" for found in view.facts(facts.FirstBadPlace)):
            self.examined = -1

    def _rhythm(self) -> str:
        """When outliers come, where that is known."""
        if 2 * self.evaluated > self.count:
            return ", after evaluations"
        return _rhythm(self.steps)


def _rhythm(steps: list[int]) -> str:
    """At which equal distances steps come; "" where they do not."""
    distance = _distance(steps)
    return "" if distance is None else f", every {distance} steps" if distance > 1 else ", one after the other"


def _distance(steps: list[int]) -> int | None:
    """The equal distance of steps; None where it differs, or there are fewer than three."""
    distances = set(np.diff(steps).tolist())
    return int(distances.pop()) if len(distances) == 1 and len(steps) >= 3 else None
