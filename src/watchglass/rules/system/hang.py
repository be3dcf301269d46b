"""Hang: a rank makes no progress, and where its threads are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.silences import note_step, silence_at
from watchglass.rules.stack_places import Frames, frames_of, place_of, standing
from watchglass.tables import JointStep, Tick

#: Ranks whose stacks are kept.
_MOST = 64
#: How much longer a finding waits for stacks that are not there.
_PATIENCE = 2.0


class Hang(Rule):
    """A rank completes no step any more; its stack shows where it stands.

    Looks at: ticks (calls of the rule while no step is completed), the time between earlier steps, and the stacks of
        all threads, which the recorder's thread of each process notes after ten seconds without a step.
    Fires when: a worker that the run waits for has completed no step for `threshold` seconds, and for `factor` times
        the median time between steps, and `pauses` times the longest pause so far. Without stacks it waits twice as
        long: a process that holds the interpreter's lock cannot show them. A run before its first step is not judged,
        and in the first 64 steps of a compiled model all limits are ten times as long.
    Usual causes: a collective that not all ranks reach; a loader whose worker has died or waits for a lock; a file
        system or a service that does not answer.
    What to try: look at the line at which the script stands; if ranks stand at different lines, at the one that stands
        elsewhere.
    Costs: ticks in the journal; stacks of a few kB, only after ten seconds without a step. Nothing is stopped for them.
    Source: 10 times the median, at least 60 s: house.
    """

    needs = (Needs(observations=("tick",), why="to see that no step is completed"),)

    threshold: float = parameter(60.0, help="shortest time without a step", unit="s", gt=0)
    factor: float = parameter(10.0, help="how many times the median time between steps", ge=0)
    pauses: float = parameter(2.0, help="how many times the longest pause before", ge=0)

    #: The time between earlier steps, see :func:`note_step`.
    gaps: dict[str, Any] = state(dict)
    #: By worker: frames of the thread that trains since the last step, as [file, line, function], innermost first.
    stacks: dict[str, Frames] = state(dict)

    def check_step(self, step: JointStep) -> Iterable[Finding]:
        """No findings: notes the time since the step before."""
        note_step(self.gaps, step)
        self.stacks = {}
        return ()

    def tick(self, tick: Tick) -> Iterable[Finding]:
        """A finding where the silence is longer than all limits."""
        for worker, stacks in list(tick.stacks.items())[:_MOST]:
            if frames := frames_of(stacks):
                self.stacks[worker] = frames
        silence = silence_at(self.gaps, tick, threshold=self.threshold, factor=self.factor, pauses=self.pauses)
        if silence is None:
            return
        unseen = [worker for worker in silence.late if worker not in self.stacks]
        if unseen and tick.silent_s < _PATIENCE * silence.limit_s:
            return
        places = {worker: place_of(self.stacks[worker]) for worker in silence.late if worker in self.stacks}
        yield self.finding(
            tick,
            subject="hang",
            value=tick.silent_s,
            limit=silence.limit_s,
            message=f"{silence.message}; {standing(places) or 'no stack could be read'}",
            symptoms=("no_step_completed",),
            evidence={
                "ends_in_s": 0.0, "places": places,
                "stacks": {
                    worker: [f"{file}:{line} in {name}" for file, line, name in self.stacks[worker]]
                    for worker in list(places)[:8]
                },
            },
        )  # fmt: skip
