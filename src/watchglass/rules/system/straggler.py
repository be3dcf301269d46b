"""Straggler: the other ranks wait for one of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from watchglass.config import parameter
from watchglass.records import PHASE_NAMES, PHASES, Finding, Mode, count, rounded
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import JointStep

#: First steps, which start workers and fill caches.
_FIRST = 8
#: Steps that are enough at the end of a short run.
_ENOUGH = 16
#: Phases in which no rank waits for another; and those with the forward, in which buffers may be made equal first.
#: Gradients are averaged in the backward or the update, and a copy to a device may wait until the device has done that.
_LOCAL = ("data", "prepare", "other")
_OWN = (*_LOCAL, "forward")
_WHERE = {
    "data": "waiting for data", "prepare": "between the arrival of a batch and the call of the model",
    "forward": "in the forward", "other": "between an update and the next batch",
}  # fmt: skip
#: Where a rank spends `other` if none reads a loader.
_UNREAD = "before the model is called (no DataLoader is read, so making batches is a part of it)"
_SYMPTOMS = {
    "data": "rank_waits_for_data", "prepare": "rank_is_slow", "forward": "rank_is_slow",
    "other": "rank_is_late_between_steps",
}  # fmt: skip


class Straggler(Rule):
    """One rank needs longer for its part of each step, and the others wait for it.

    Looks at: the phases of the training steps of all ranks. Ranks that average gradients end their steps together, so
        the time of a whole step does not show which one is slow. Backward and update, in which ranks wait for each
        other, are left out, and so are copies to a device, which wait for its earlier work.
    Fires when: in each of the last two windows of `window` steps, the median time in the other phases is longest on
        the same rank, and longer than the median of the other ranks by `percent` percent of a whole step. The forward
        counts only where the phases before it show no such rank: some models wait for other ranks in it. A run that is
        too short for two windows is judged at its end. The gain is an upper bound: a rank as fast as the others. In a
        forward it is none, because such a rank is most likely slow in its backward too, whose time is not known. A rank
        that is slow in its backward alone is not found.
    Usual causes: a rank that also logs, evaluates or saves; longer samples or a slower disk; a loader with fewer cores;
        another program on the same cores or GPU.
    What to try: compare what this rank does with the others; give all ranks equal shares of data and cores.
    Costs: nothing in addition to the phases of steps, which are recorded under a launcher.
    Source: house.
    """

    needs = (Needs(rows=(PHASES,), why="to see which rank the others wait for"),)

    percent: float = parameter(10.0, help="time that a rank takes longer, relative to a step", unit="%", gt=0, le=100)
    window: int = parameter(32, help="steps of a window", unit="steps", ge=1)

    #: Steps of several ranks that were seen, and whether a rank reads a loader: else batches are made between steps.
    seen: int = state(int)
    reads: bool = state(bool)
    #: By rank: seconds by phase of the steps of the present window.
    inside: dict[str, list[list[float]]] = state(dict)
    #: Number of whole windows, and of the last one what :meth:`_slowest` returns.
    windows: int = state(int)
    before: list[Any] = state(list)

    def check_step(self, step: JointStep) -> Iterable[Finding]:
        """A finding after windows with the same slow rank."""
        phases = {view.worker: row for view in step.views for row in view.rows(PHASES)}
        if step.mode is not Mode.TRAIN or len(phases) < 2:
            return
        self.seen += 1
        self.reads = self.reads or any(seconds.data_s > 0 for seconds in phases.values())
        if self.seen <= _FIRST:
            return
        if self.inside and phases.keys() != self.inside.keys():
            self.inside = {}  # a rank has left or come
        for rank, seconds in phases.items():
            self.inside.setdefault(rank, []).append(list(seconds))
        if self._length < self.window:
            return
        last, self.before, self.inside = self.before, self._slowest(), {}
        self.windows += 1
        if self.windows > 1:
            yield from self._judged(step, last, self.before)

    def finish(self, step: JointStep) -> Iterable[Finding]:
        """The judgement of a short run."""
        whole = [self.before] if self.windows == 1 else []
        rest = [self._slowest()] if self._length >= min(_ENOUGH, self.window) else []
        if self.windows < 2 and (whole or rest):
            yield from self._judged(step, *whole, *rest)

    def applicable(self, step: JointStep) -> str:
        """Not for a single rank, nor for a run that is too short."""
        if not self.seen:
            return "one process trains, so no rank waits for another"
        enough = _FIRST + min(_ENOUGH, self.window)
        few = f"the ranks have {count(self.seen, 'training step')} together; {enough} are needed"
        return few if self.seen < enough else ""

    @property
    def _length(self) -> int:
        return max(map(len, self.inside.values()), default=0)

    def _slowest(self) -> list[Any]:
        """Of the present window the slowest rank, seconds that it takes longer, seconds of a step, and the phase."""
        ranks = sorted(self.inside)
        medians = np.array([np.median(np.asarray(self.inside[rank]), axis=0) for rank in ranks])
        whole = float(np.median(medians.sum(1)))
        for phases in (_LOCAL, _OWN):
            own = medians[:, [PHASE_NAMES.index(name) for name in phases]]
            slowest = int(own.sum(1).argmax())
            later = own[slowest] - np.median(np.delete(own, slowest, axis=0), axis=0)
            if 100 * later.sum() >= self.percent * whole:
                break
        return [ranks[slowest], float(later.sum()), whole, phases[int(later.argmax())]]

    def _judged(self, step: JointStep, *windows: list[Any]) -> Iterable[Finding]:
        ranks, laters, wholes, phases = zip(*windows, strict=True)
        slow = all(100 * later >= self.percent * max(whole, 1e-9) for _, later, whole, _ in windows)
        if not slow or len(set(ranks)) > 1:
            return
        rank, phase = ranks[-1], phases[-1]
        unread = phase == "other" and not self.reads
        where, symptom = (_UNREAD, "rank_is_late_outside_model") if unread else (_WHERE[phase], _SYMPTOMS[phase])
        later, whole = float(np.mean(laters)), float(np.mean(wholes))
        gain, others = whole / max(whole - later, 1e-9), len(step.views) - 1
        # What is slow in the forward is slow in the backward too, in which ranks wait for each other.
        bound = (
            f"if it were as fast as the others there, steps would be {rounded(gain, 1)} times as fast, and faster "
            f"still where "
            "its backward takes longer too"
            if phase == "forward"
            else f"if it were as fast as the others, steps would be at most {rounded(gain, 1)} times as fast"
        )
        yield self.finding(
            step,
            subject=rank,
            value=100 * later / whole,
            limit=self.percent,
            message=f"{'the other rank waits' if others == 1 else f'{others} other ranks wait'} for {rank}: it takes "
            f"{1000 * later:.3g} ms longer in each training step of {1000 * whole:.3g} ms, mostly {where}; " + bound,
            symptoms=(symptom,),
            evidence={"gain": gain, "rank": rank, "phase": phase, "seconds": later, "step_s": whole},
        )
