"""Hang: a rank makes no progress, and where its threads are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Severity
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.stats import median
from watchglass.tables import JointStep, Tick

#: Times between steps of which the median is taken; ranks whose stacks are kept.
_LAST, _MOST = 64, 64
#: How much longer a finding waits for stacks that are not there.
_PATIENCE = 2.0
#: Parts of the paths of files that belong to Python or to installed packages, not to the script.
_LIBRARIES = ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python", "<frozen")


class Hang(Rule):
    """A rank completes no step any more; its stack shows where it stands.

    Looks at: ticks (calls of the rule while no step is completed), the time between earlier steps, and the stacks of
        all threads, which the recorder's thread of each process notes after ten seconds without a step.
    Fires when: a worker that the run waits for has completed no step for `threshold` seconds, and for `factor` times
        the median time between steps, and `pauses` times the longest pause so far. Without stacks it waits twice as
        long: a process that holds the interpreter's lock cannot show them. A run before its first step is not judged.
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

    #: Seconds between the ends of the last steps, the longest of all, and the end of the last step.
    between: list[float] = state(list)
    longest: float = state(float)
    ended_ns: int = state(int)
    #: By worker: frames of the thread that trains since the last step, as [file, line, function], innermost first.
    stacks: dict[str, list[Any]] = state(dict)

    def check_step(self, step: JointStep) -> Iterable[Finding]:
        """No findings: notes the time since the step before."""
        if self.ended_ns:
            seconds = max(0.0, (step.first.end_ns - self.ended_ns) / 1e9)
            self.between = [*self.between[1 - _LAST :], seconds]
            self.longest = max(self.longest, seconds)
        self.ended_ns = step.first.end_ns
        self.stacks = {}
        return ()

    def tick(self, tick: Tick) -> Iterable[Finding]:
        """A finding where the silence is longer than all limits."""
        for worker, data in list(tick.stacks.items())[:_MOST]:
            if frames := _frames(data):
                self.stacks[worker] = frames
        if not isinstance(tick.last, JointStep):
            return
        usual = median(self.between) if self.between else 0.0
        limit = max(self.threshold, self.factor * usual, self.pauses * self.longest)
        late = sorted(worker for worker, seconds in tick.seconds.items() if seconds >= limit)
        unseen = [worker for worker in late if worker not in self.stacks]
        if not late or (unseen and tick.silent_s < _PATIENCE * limit):
            return
        places = {worker: _place(self.stacks[worker]) for worker in late if worker in self.stacks}
        yield self.finding(
            tick,
            severity=Severity.WARNING,
            subject="hang",
            value=tick.silent_s,
            limit=limit,
            message=f"{', '.join(late[:4])} {'has' if len(late) == 1 else 'have'} completed no step for "
            f"{tick.silent_s:.0f} s after step {tick.last.mode_step}; {_standing(places) or 'no stack could be read'}",
            symptoms=("no_step_completed",),
            evidence={"places": places, "stacks": {worker: _lines(self.stacks[worker]) for worker in list(places)[:8]}},
        )


def _frames(data: Any) -> list[Any]:
    """Frames of the thread that trains, in data that any program may have written; [] where there are none."""
    threads = data.get("threads") if isinstance(data, dict) else None
    for thread in threads if isinstance(threads, list) else ():
        if isinstance(thread, dict) and thread.get("trains") is True and isinstance(thread.get("frames"), list):
            frames = [each for each in thread["frames"][:32] if isinstance(each, list) and len(each) == 3]
            return [[str(file), line, str(name)] for file, line, name in frames if type(line) is int]
    return []


def _place(frames: list[Any]) -> str:
    """Where the script stands, and the innermost function there."""
    inner = frames[0]
    script = next((each for each in frames if not any(part in each[0] for part in _LIBRARIES)), inner)
    line = f"{os.path.basename(script[0])}:{script[1]} in {script[2]}"
    return line if script is inner else f"{line}, in {inner[2]} of {os.path.basename(inner[0])}"


def _standing(places: dict[str, str]) -> str:
    """Which workers stand where; the place with the fewest first, for that is where ranks differ."""
    by_place: dict[str, list[str]] = {}
    for worker, place in places.items():
        by_place.setdefault(place, []).append(worker)
    rows = sorted(by_place.items(), key=lambda each: (len(each[1]), each[0]))[:4]
    if len(rows) == 1:
        return f"{'it stands' if len(places) == 1 else 'all stand'} at {rows[0][0]}"
    return "; ".join(f"{', '.join(workers[:4])} at {place}" for place, workers in rows)


def _lines(frames: list[Any]) -> list[str]:
    return [f"{file}:{line} in {name}" for file, line, name in frames]
