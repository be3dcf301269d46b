"""UpdateBound: most of each training step goes to the update, and little to the samples of its small batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from watchglass.config import parameter
from watchglass.records import PHASES, Finding, Mode, count, facts, in_percent, rounded
from watchglass.rules import step_windows
from watchglass.rules.host_phases import why_updates_are_unclear
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.update_batches import follow_batches, samples_of_update
from watchglass.stats import median
from watchglass.tables import JointStep

#: Steps that are enough for a short run.
_ENOUGH = 32


class UpdateBound(Rule):
    """The update of the weights takes most of each training step of few samples.

    Looks at: the phases of training steps, in the median over steps; the samples of an update.
    Fires when: in each of the last two windows of `window` steps, the update took at least `limit` percent of a step,
        and an update has at most `most_samples` samples. A run that is too short for two windows is judged at its end.
        If the rest of a step grows in proportion to the batch, each sample takes `1 - s / 2` times as long at twice the
        batch, and at least `1 - s` times at any, where the update has share `s`; the rest often grows less.
        Phases are times of the host, so the rule does not judge runs that use a GPU: BatchSize does. What a script does
        between the backward and the update, such as metrics, counts as update; with many samples that may be the work,
        which is why the rule leaves these out. It does not judge updates that a script writes itself, nor LBFGS, which
        computes forwards and backwards within its step.
    Usual causes: a batch of one or a few samples; an optimizer with much state, for a model with many weights.
    What to try: a larger batch; gradient accumulation; `fused=True` of the optimizer.
    Costs: nothing in addition to facts of the default rules and the phases of steps, recorded under a launcher.
    Source: house: 50 percent and 32 samples. In healthy programs of the scoreboard's development half and the examples,
        updates take 46 percent at most, and 43 where an update has no more samples.
    """

    needs = (
        Needs(rows=(PHASES,), why="to see how long updates take"),
        Needs(facts=("batch",), why="to know how many samples an update has"),
        Needs(facts=("calls",), optional=True, why="to know how many batches an update has"),
        Needs(facts=("data_loader",), optional=True, why="to know the size of batches"),
    )

    limit: float = parameter(50.0, help="share of the update in a step", unit="%", gt=0, lt=100)
    most_samples: int = parameter(32, help="samples of an update that are few", unit="samples", ge=1)
    window: int = parameter(64, help="steps of a window", unit="steps", ge=_ENOUGH)

    #: See :mod:`step_windows`; seconds of the update and of the whole, of all ranks.
    windows: dict[str, Any] = state(step_windows.empty)
    #: See :func:`follow_batches`; the most samples of an update, and the number of updates whose samples are unclear.
    known: dict[str, Any] = state(dict)
    samples: int = state(int)
    unclear: int = state(int)

    def check_step(self, step: JointStep) -> Iterable[Finding]:
        """A finding after two windows whose steps are mostly update."""
        first = step.first
        follow_batches(first, self.known)
        phases = [row for view in step.views for row in view.rows(PHASES)]
        if step.mode is not Mode.TRAIN or not phases:
            return
        if first.facts(facts.BatchInputs):
            samples = samples_of_update(first, self.known)
            self.samples, self.unclear = max(self.samples, samples or 0), self.unclear + (samples is None)
        if not step_windows.note_step(self.windows):
            return
        row = [sum(each.update_s for each in phases), sum(map(sum, phases))]
        yield from self._judged(step, step_windows.add(self.windows, row, self.window))

    def finish(self, step: JointStep) -> Iterable[Finding]:
        """The judgement of a short run."""
        rows = step_windows.of_short_run(self.windows, self.window, _ENOUGH)
        yield from self._judged(step, step_windows.halves(rows))

    def applicable(self, step: JointStep) -> str:
        """Not where the time of updates includes other work, or where the size of the batch is not clear."""
        if not self.windows["seen"]:
            return ""
        return step_windows.too_few(self.windows, _ENOUGH) or self._unfit(step)

    def _unfit(self, step: JointStep) -> str:
        """Why the time of the update says nothing; "" if it does."""
        model = step.first.latest_fact(facts.ModelDescription)
        devices = model.devices if model is not None else None
        if devices != ("cpu",):
            return f"the model is on {' and '.join(devices)}" if devices else "the device of the model is not known"
        unclear = "" if self.samples and not self.unclear else "the number of samples of an update is not clear"
        return why_updates_are_unclear(step.first) or unclear

    def _judged(self, step: JointStep, windows: list[list[step_windows.Row]]) -> Iterable[Finding]:
        if not windows:
            return
        # A median: at captured steps, the work of watchglass is a part of the update.
        share = min(median([update / max(whole, 1e-9) for update, whole in rows]) for rows in windows)
        if 100 * share < self.limit or share >= 1 or self.samples > self.most_samples or self._unfit(step):
            return
        ms = 1000 * median([whole for rows in windows for _, whole in rows]) / len(step.views)
        yield self.finding(
            step,
            subject="update",
            value=100 * share,
            limit=self.limit,
            message=f"the update of the weights takes {in_percent(share)} of each training step of {ms:.3g} ms, and "
            f"would take as long for more than {count(self.samples, 'sample')}; if the rest grows with the batch, each "
            f"sample takes {rounded(1 - share / 2, 2)} times as long at twice the batch, and at least "
            f"{rounded(1 - share, 2)} times at "
            "any",
            symptoms=("update_takes_most",),
            what_to_try=(
                "Use a larger batch, and scale the learning rate with it",
                "Accumulate the gradients of several batches for one update",
                "Try fused=True of the optimizer, which goes over the weights once",
            ),
            evidence={
                "gain": 1 / (1 - share),
                "batch_size": self.samples,
                "step_s": ms / 1000,
                "time_of_sample_at_twice": 1 - share / 2,
                "least_time_of_sample": 1 - share,
            },
        )
