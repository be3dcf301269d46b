"""TooSlow: weights move along a straight line, in steps that are far too small."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, facts
from watchglass.rules import signals
from watchglass.rules.modern.sampled_updates import SampledUpdates, middle, sampled_updates
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class TooSlow(Rule):
    """The weights move in one direction for the whole run, by updates that are far too small.

    Looks at: for sampled weights, the change between two samples against the one before (cosine), its size against
        the weight, the course of the loss, and the learning rate.
    Fires when: half of the run is over (at the end where its length is not known), the cosine has been above `straight`
        in all but a quarter of at least `patience` samples, all changes together are less than `far` times the weights,
        and the loss has fallen by less than `learned`. With a suitable learning rate the weights turn and slow down;
        with one that is far too low they continue in their first direction. Runs that warm up or decay the rate,
        resumed runs, and runs whose loss falls are not reported. Where all updates of the run together are less than
        `nowhere` times the weights, a quarter of the run is enough and the direction does not count.
    Usual causes: a learning rate that is one or more orders of magnitude too low.
    What to try: raise the learning rate by a factor of 10, until the loss falls or the updates turn.
    Costs: the fact update_sample, 0.05 ms for each of at most 32 parameters at steps 8 to 64 apart.
    Source: house: all limits.
    """

    starts_with = "task"
    needs = (
        Needs(facts=("update_sample",), why="to follow the direction and size of updates"),
        Needs(scalars=("loss",), why="to see whether the run learns"),
    )
    modes = (Mode.TRAIN,)

    straight: float = parameter(0.8, help="cosine of successive changes", unit="ratio", gt=0, lt=1)
    far: float = parameter(0.05, help="change since the start over the weight", unit="ratio", gt=0)
    nowhere: float = parameter(1e-3, help="change over the weight that changes nothing", unit="ratio", gt=0)
    learned: float = parameter(0.2, help="fall of the loss that shows learning", unit="ratio", gt=0, lt=1)
    patience: int = parameter(2, help="samples with a direction", unit="samples", ge=1)

    start: list[float] = state(list)
    #: Changes with a direction, those of them that were straight; all changes between samples together over the weight,
    #: and the steps in which they were made.
    directed: int = state(int)
    straights: int = state(int)
    path: float = state(float)
    seen: int = state(int)
    steps: int = state(int)
    #: Median update over weight of the latest sample, and whether the rate was ever raised or lowered on purpose.
    ratio: float = state(float)
    scheduled: bool = state(bool)
    tensors: list[str] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a TRAIN step with a sample."""
        self.steps = view.model_step + 1
        self.scheduled = self.scheduled or signals.decayed(view)
        signals.remember_start(self.start, signals.loss(view))
        for sample in sampled_updates(view) if not signals.skipped(view) else ():
            self._take(view, sample)
            planned = view.latest_fact(facts.PlannedSteps)
            steps = planned.steps if planned is not None else None
            if steps is not None and steps > 0:
                yield from self._judge(view, steps)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement."""
        if view.mode is Mode.TRAIN or self.steps:
            yield from self._judge(view, self.steps)

    def _take(self, view: StepView, sample: SampledUpdates) -> None:
        ratio = middle(sample.ratio())
        if not np.isfinite(ratio) or not np.any(sample.setting("lr") != 0):
            return
        self.ratio, self.tensors = ratio, sample.names[:8]
        with np.errstate(all="ignore"):
            moved = middle(sample["moved"] / sample["weight"])
        if np.isfinite(moved):
            self.path += moved
            self.seen += sample.since
        cosine = middle(sample["cosine_moved"])
        if np.isfinite(cosine):
            self.directed += 1
            self.straights += cosine > self.straight

    def _judge(self, view: StepView, total: int) -> Iterable[Finding]:
        over = self.steps / max(total, 1)
        if self.directed < self.patience or self.scheduled or self.path <= 0 or over < 0.25:
            return
        # Between and after the samples it goes on like that.
        whole = self.path * max(total, self.steps) / self.seen
        straight = 4 * self.straights >= 3 * self.directed and over >= 0.5 and whole < self.far
        if not straight and whole >= self.nowhere:
            return
        if signals.resumed(view) or signals.warming_up(view):
            return
        latest = signals.losses(view, 32)
        if not -0.1 < signals.progress(self.start, latest) < self.learned:
            return
        lead = "the weights move in one direction" if straight else "the weights hardly move"
        yield self.finding(
            view,
            subject="speed",
            tensors=self.tensors,
            value=whole,
            limit=self.far if straight else self.nowhere,
            message=f"{lead}: an update is {self.ratio:.2g} times the weight, and {max(total, self.steps):,} steps "
            f"change it by {100 * whole:.2g} %" + signals.loss_words(self.start, latest),
            symptoms=("updates_get_nowhere",),
            evidence={
                **signals.evidence(view),
                **signals.loss_evidence(self.start, latest),
                "update_ratio": self.ratio,
                "steps": max(total, self.steps),
            },
        )
