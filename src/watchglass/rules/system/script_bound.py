"""ScriptBound: most of each training step is neither loader nor model nor optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from watchglass.config import parameter
from watchglass.records import PHASES, Finding, Mode, count, facts, in_percent, rounded
from watchglass.rules import step_windows
from watchglass.rules.gpu_samples import idle_share, with_busiest
from watchglass.rules.host_phases import why_updates_are_unclear
from watchglass.rules.needs import Needs, Windows
from watchglass.rules.rule import Rule, state
from watchglass.stats import median
from watchglass.tables import JointStep

#: Steps that are enough for a short run.
_ENOUGH = 16
#: Windows whose median is kept, an even number: then two become one. Parts in which the time has to rise, and least
#: windows of a part, so that a few seconds in which the machine is busy are no growth.
_KEPT, _PARTS, _OF_PART = 64, 4, 2
#: Least share of the whole growth in each part after the first, as in a straight line each has a third; least growth.
_STEADY, _DOUBLE = 0.2, 2.0


class ScriptBound(Rule):
    """Most of each training step is spent outside of the loader, the model and the optimizer.

    Looks at: the phases `prepare` and `other` of training steps without a capture, in the median over steps; the
        utilization of the GPUs of the run.
    Fires when: in each of the last two windows of `window` steps, these phases took at least `limit` percent and
        `least` seconds of a step, on every rank. A run that is too short for two windows is judged at its end. For a
        model on a GPU only so much counts as the GPUs were idle, because the script may wait for them in this time; if
        no sample of a GPU shows that, the rule does not apply. The gain is an upper bound: steps without this time, and
        all else as it was. Single long pauses do not count: StepOutlier finds them. What one rank does alone is found
        by Straggler. A second finding names growth: over four equal parts of at least eight windows, two for each
        part, the time rose in each part by a fifth of the whole growth or more, and at least doubled. The rule does not
        judge updates that a script writes itself, nor LBFGS, whose time is partly in `other`.
    Usual causes: samples that are read, decoded or augmented in the loop; metrics, logs or images of each step; a
        simulator; a sleep or a request to a service. Where it grows: a metric or a plot of all that was collected so
        far.
    What to try: the functions of some steps, by `--python-profile`; a `DataLoader` with worker processes; logs and
        metrics once in many steps.
    Costs: nothing in addition to facts of the default rules and the phases of steps, recorded under a launcher.
    Source: house: 50 percent and 1 ms, eight windows, a fifth and double. In healthy programs of the scoreboard's
        development half, these phases take 27 percent at most, in one that plays a game between its steps.
    """

    needs = (
        Needs(rows=(PHASES,), why="to see how long the script does something else"),
        Needs(facts=("model",), why="to know the device of the model"),
        Needs(facts=("optimizer",), optional=True, why="to know whether phases show where an update ends"),
        Needs(metrics=("gpu.utilization", "gpu.processes"), optional=True),
    )
    streams = Windows(kinds=("samples",), length_s=1)

    limit: float = parameter(50.0, help="share of these phases in a step", unit="%", gt=0, lt=100)
    least: float = parameter(1e-3, help="time of these phases in a step", unit="s", ge=0)
    window: int = parameter(32, help="steps of a window", unit="steps", ge=_ENOUGH)

    #: See :mod:`step_windows`; seconds by phase of the rank that spends least in these phases, at steps without a
    #: capture.
    windows: dict[str, Any] = state(step_windows.empty)
    #: The medians of the time outside of loader, model and optimizer, over one or more windows each, with the last step
    #: of each; how many windows; and medians of the open ones.
    course: list[list[float]] = state(list)
    length: int = state(lambda: 1)
    open: list[float] = state(list)
    #: Whether any step waited for a loader.
    reads: bool = state(bool)
    #: See :func:`with_busiest`.
    busy: list[float] = state(lambda: [0.0, 0])

    def check_step(self, step: JointStep) -> Iterable[Finding]:
        """A finding after two windows whose steps are mostly something else."""
        phases = [row for view in step.views for row in view.rows(PHASES)]
        if step.mode is not Mode.TRAIN or not phases:
            return
        if not step_windows.note_step(self.windows):
            return
        self.busy = with_busiest(self.busy, step.streams)
        self.reads = self.reads or any(each.data_s > 0 for each in phases)
        # At a capture, a part of this time is that of watchglass.
        if any(view.has_capture for view in step.views):
            return
        fewest = min(phases, key=lambda each: each.prepare_s + each.other_s)
        calls_s = max(min(fewest.forward_s, fewest.backward_s), fewest.compute_s)
        row = [fewest.prepare_s, fewest.other_s, sum(fewest), calls_s]
        both = step_windows.add(self.windows, row, self.window)
        if not self.windows["counted"] % self.window:
            self._note_course(step)
        yield from self._judged(step, both)

    def finish(self, step: JointStep) -> Iterable[Finding]:
        """The judgement of a short run."""
        rows = step_windows.of_short_run(self.windows, self.window, _ENOUGH)
        yield from self._judged(step, step_windows.halves(rows))

    def applicable(self, step: JointStep) -> str:
        """Not where phases show something else, or too few of them."""
        if not self.windows["seen"]:
            return ""
        if self.windows["counted"] < _ENOUGH:
            few = count(self.windows["counted"], "training step")
            first = step_windows.FIRST
            return f"the run has {few} without a capture, after the first {first}; {_ENOUGH} are needed"
        return self._unfit(step)

    def _unfit(self, step: JointStep) -> str:
        """Why the phases say nothing about the script; "" if they do."""
        model = step.first.latest_fact(facts.ModelDescription)
        devices = model.devices if model is not None else None
        if not devices:
            return "the device of the model is not known"
        if devices != ("cpu",) and idle_share(self.busy) is None:
            return f"the model is on {' and '.join(devices)}, and no sample shows how long its GPUs are idle"
        if not median([calls for *_, calls in self.windows["rows"]]):
            return "the forward or the backward of the steps was not seen"
        return why_updates_are_unclear(step.first)

    def _judged(self, step: JointStep, windows: list[list[step_windows.Row]]) -> Iterable[Finding]:
        if not windows:
            return
        spent = [[median(list(column)) for column in zip(*rows, strict=True)] for rows in windows]
        idle = idle_share(self.busy)
        own = [min(prepare + other, (1.0 if idle is None else idle) * whole) for prepare, other, whole, _ in spent]
        enough = all(
            100 * each >= self.limit * row[2] and self.least <= each < row[2]
            for each, row in zip(own, spent, strict=True)
        )
        if not enough or self._unfit(step):
            return
        prepare, other, whole, _ = (sum(column) / 2 for column in zip(*spent, strict=True))
        avoidable = sum(own) / 2
        gain = whole / (whole - avoidable)
        ranks = len({view.worker for view in step.views})
        where = "between the arrival of a batch and the call of the model" if prepare > other else self._before()
        yield self.finding(
            step,
            subject="script",
            value=100 * avoidable / whole,
            limit=self.limit,
            message=f"{1000 * (prepare + other):.3g} ms of each training step of {1000 * whole:.3g} ms "
            f"({in_percent((prepare + other) / whole)}) are spent outside of loader, model and optimizer"
            f"{f', on each of {ranks} ranks' if ranks > 1 else ''}, mostly {where}"
            f"{'' if idle is None else f', while the GPUs are idle {in_percent(idle)} of the time'}; without this time "
            f"steps are at most {rounded(gain, 1)} times as fast",
            symptoms=("script_takes_most", *(() if idle is None else ("gpus_idle_beside_script",))),
            evidence={"gain": gain, "prepare_s": prepare, "other_s": other, "step_s": whole},
        )
        yield from self._growth(step, gain)

    def _note_course(self, step: JointStep) -> None:
        rows = self.windows["rows"][-self.window :]
        self.open.append(median([prepare + other for prepare, other, *_ in rows]))
        if len(self.open) < self.length:
            return
        self.course.append([sum(self.open) / self.length, step.mode_step])
        self.open = []
        if len(self.course) == _KEPT:
            pairs = zip(self.course[::2], self.course[1::2], strict=True)
            self.course, self.length = [[(a + b) / 2, last] for (a, _), (b, last) in pairs], 2 * self.length

    def _growth(self, step: JointStep, gain: float) -> Iterable[Finding]:
        """A finding where the time rises from part to part of the run."""
        size = len(self.course) // _PARTS
        if size < _OF_PART:
            return
        course = self.course[-_PARTS * size :]
        parts = [median([spent for spent, _ in course[n * size : (n + 1) * size]]) for n in range(_PARTS)]
        growth = parts[-1] - parts[0]
        rises = [after - before for before, after in pairwise(parts)]
        if min(rises) < _STEADY * growth or parts[-1] < max(_DOUBLE * parts[0], parts[0] + self.least):
            return
        first, last = (int(course[size // 2 - 1 + n][1]) for n in (0, (_PARTS - 1) * size))
        yield self.finding(
            step,
            subject="growth",
            value=parts[-1] / max(parts[0], 1e-9),
            limit=_DOUBLE,
            message="what the script does outside of loader, model and optimizer takes longer from step to step: "
            f"{1000 * parts[0]:.3g} ms of each around step {first}, {1000 * parts[-1]:.3g} ms around step {last}; "
            f"at step {step.mode_step} steps are at most {rounded(gain, 1)} times as fast without this time",
            symptoms=("script_time_grows",),
            evidence={"gain": gain, "first_s": parts[0], "last_s": parts[-1]},
        )

    def _before(self) -> str:
        loader = "" if self.reads else " (no DataLoader is read, so making batches is a part of it)"
        return f"before {'the next batch' if self.reads else 'the model is called'}{loader}"
