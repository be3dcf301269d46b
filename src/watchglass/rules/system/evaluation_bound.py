"""EvaluationBound: most of the time goes to evaluations."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import PHASES, Finding, Mode, Severity, count, facts, in_percent, rounded
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Windows that are judged together, and evaluations of a window: one alone may be the first, which starts workers.
_WINDOWS, _EVALUATIONS = 2, 2
#: Steps of an evaluation on a device from which on its time is its own: before them, the host may wait for what the
#: training steps have left in the queue of the device.
_OWN = 4


class EvaluationBound(Rule):
    """Evaluations between training steps take most of the time.

    Looks at: the time of training steps and of evaluations.
    Fires when: in each of the last two windows, evaluations took at least `limit` percent of the time of all steps. A
        window has two evaluations or more, and `window` training steps or more. Calls of the model without an update
        are evaluations where a loss is computed in them, or where the model is in evaluation mode; other ones, such as
        an accuracy by a second forward, or the steps of an agent in its environment, are an `info`. With a model on a
        device, evaluations of fewer than four batches are not judged: the first of them may wait for the training step
        before it. The gain is an upper bound: no evaluation, and all else as it was.
    Usual causes: an evaluation on the whole validation set after a few training steps; a metric of the training set by
        a second forward in each step; an evaluation with smaller batches than it needs.
    What to try: evaluate less often, on a fixed part of the validation set, with larger batches; take training metrics
        from the outputs of the training step.
    Costs: nothing in addition to the phases of steps, which are recorded under a launcher.
    Source: house: 50 percent, 32 steps, two windows.
    """

    needs = (
        Needs(rows=(PHASES,), why="to see how long evaluations take"),
        Needs(facts=("model",), optional=True, why="to know the device of the model"),
        Needs(facts=("training_flags",), optional=True, why="to tell evaluations from other calls of the model"),
        Needs(scalars=("loss",), modes=(Mode.EVAL,), optional=True, why="to tell evaluations from other calls"),
    )

    limit: float = parameter(50.0, help="share of evaluations in the time of all steps", unit="%", gt=0, lt=100)
    window: int = parameter(32, help="least training steps of a window", unit="steps", ge=1)

    #: Of the open window and of whole ones, the last of them last: training steps and their seconds, evaluations,
    #: their steps and seconds, and of these steps those that are known to evaluate.
    rows: list[list[float]] = state(lambda: [[0.0] * 6])
    #: Number of evaluations before training steps.
    evaluations: int = state(int)
    #: Whether evaluations came since the last training step, whether a training step came, and whether the model is in
    #: evaluation mode where no update follows.
    evaluating: bool = state(bool)
    #: End of the step before.
    ended_ns: int = state(int)
    trained: bool = state(bool)
    in_evaluation_mode: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at a training step that closes a window."""
        for flags in view.facts(facts.TrainingFlags) if view.mode is Mode.EVAL else ():
            self.in_evaluation_mode = flags.training is False
        phases = view.rows(PHASES)
        if not phases:
            return
        seconds, row = sum(phases[0]), self.rows[-1]
        if view.covers > 1:
            # The times of the steps that were not recorded are not known one by one.
            seconds = (view.end_ns - self.ended_ns) / 1e9
        self.ended_ns = view.end_ns
        if view.mode is Mode.TRAIN:
            # An evaluation after the step, not before it, belongs to it.
            if self.evaluating and row[0] >= self.window and row[2] >= _EVALUATIONS:
                yield from self._judged(view)
                row = [0.0] * 6
                self.rows = [*self.rows[1 - _WINDOWS :], row]
            self.evaluations += self.evaluating
            self.trained, self.evaluating = True, False
            row[0] += view.covers
            row[1] += seconds
        elif view.mode is Mode.EVAL and self.trained:
            row[2] += not self.evaluating
            row[3] += view.covers
            row[4] += seconds
            row[5] += view.covers * (self.in_evaluation_mode or view.scalar("loss") is not None)
            self.evaluating = True

    def applicable(self, view: StepView) -> str:
        """Not for runs with few evaluations between training steps."""
        needed = _WINDOWS * _EVALUATIONS
        few = self.trained and self.evaluations < needed
        return (
            f"{count(self.evaluations, 'evaluation')} came between training steps; {needed} are needed" if few else ""
        )

    def _judged(self, view: StepView) -> Iterable[Finding]:
        rows = self.rows[-_WINDOWS:]
        if len(rows) < _WINDOWS or min(row[4] / max(row[1] + row[4], 1e-9) for row in rows) < self.limit / 100:
            return
        steps, training_s, evaluations, calls, evaluations_s, known = (sum(each) for each in zip(*rows, strict=True))
        model = view.latest_fact(facts.ModelDescription)
        on_device = model is not None and model.devices != ("cpu",)
        if not training_s or (on_device and calls < _OWN * evaluations):
            return
        whole, each_s = training_s + evaluations_s, evaluations_s / evaluations
        evaluates = 2 * known >= calls
        what = "evaluations" if evaluates else "calls of the model without an update"
        yield self.finding(
            view,
            severity=Severity.WARNING if evaluates else Severity.INFO,
            subject="evaluations",
            value=100 * evaluations_s / whole,
            limit=self.limit,
            message=f"{in_percent(evaluations_s / whole)} of the time goes to {what}: {each_s:.2g} s after "
            f"{_every(steps / evaluations)} {training_s / evaluations:.2g} s; without them the run is at most "
            f"{rounded(whole / training_s, 1)} times as fast, with half as many "
            f"{rounded(whole / (training_s + evaluations_s / 2), 1)} "
            "times",
            symptoms=("evaluations_take_most",) if evaluates else (),
            of_model=False,
            evidence={
                "gain": whole / training_s,
                "gain_of_half": whole / (training_s + evaluations_s / 2),
                "evaluations": evaluations,
                "seconds": evaluations_s,
                "seconds_each": each_s,
                "training_steps_between": steps / evaluations,
                "training_seconds_between": training_s / evaluations,
            },
        )


def _every(steps: float) -> str:
    if steps == 1:
        return "each training step, which takes"
    number = f"{round(steps):,}" if steps >= 10 else f"{steps:.2g}"
    return f"every {number} training steps, which take"
