"""MemoryLeak: the memory of the run grows and does not level off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Severity, facts, rounded
from watchglass.rules.memory_growth import FINE, LEAST_BYTES, LEAST_PERCENT, PART_SIZES, PARTS, WINDOW_S, steady_growth
from watchglass.rules.needs import Needs, Windows
from watchglass.rules.rule import Rule, state
from watchglass.tables import JointStep, StepView, Window

#: Least memory of windows that is kept; then two windows become one.
_KEPT = 64
#: Processes that train, of which facts are kept.
_MOST_PROCESSES = 64
#: Held graphs of earlier steps that are no chance.
_HELD = 3
#: Ending of the keys of the beginning of a run.
_BEGINNING = "/beginning"
#: Steps whose blocks of Python are kept; how often they rose, and by how many in all and for a step, if that is no
#: noise.
_POINTS, _RISES, _BLOCKS, _BLOCKS_OF_STEP = 8, 2, 1000, 0.5


class MemoryLeak(Rule):
    """The resident memory of the run's processes grows steadily.

    Looks at: `processes.memory`, the least value in each window of `window_s` seconds after the first training step. So
        memory that is used and freed within a step, or within an epoch, does not count.
    Fires when: over four equal parts of the last windows the least memory rose in each part, by a fifth of the whole
        growth or more, and by `least_bytes` and `percent` percent together. Parts of 1, 2, 4 ... 16 windows are
        compared. The windows become longer in a long run, so a leak that takes days is found too. Until five windows
        are whole, windows of a twelfth of their length are compared in the same way: a `warning` if in parts of two or
        more the limit of the memory is reached within five windows at this rate, or if graphs are held; at the end of a
        shorter run an `info` without either. The process is
        named that has half of the growth. What grows is named where that is known: graphs of earlier steps that are
        still held, in a process that trains, or the number of Python's memory blocks in it.
    Usual causes: a list of losses or outputs that keeps the graph of each step; a cache or a hook that keeps tensors;
        samples that are Python objects, which each loader worker copies by and by.
    What to try: keep `loss.item()` or `loss.detach()`; look for what grows with `tracemalloc`; store samples in arrays.
    Costs: the fact held_memory; the samples of the machine are recorded under a launcher.
    Source: 5 percent, 100 MB, three windows with growth, a twelfth, three held graphs, 1000 blocks and one in two
        steps: house.
    """

    needs = (
        Needs(metrics=("processes.memory",), why="to see whether it grows"),
        Needs(metrics=("memory.limit",), optional=True),
        Needs(facts=("held_memory",), optional=True),
    )
    streams = Windows(kinds=("samples",), length_s=1)

    window_s: float = parameter(WINDOW_S, help="time of which the least memory counts", unit="s", ge=0.1)
    least_bytes: float = parameter(LEAST_BYTES, help="least growth", unit="bytes", gt=0)
    percent: float = parameter(LEAST_PERCENT, help="least growth relative to the first part", unit="%", ge=0)

    #: By stream and clock, and with an ending for the beginning of a run: number of the open window, length of windows
    #: in units of ``window_s``, and for each window seconds, the last training step with the seconds of its end, least
    #: memory, and that of each process.
    open: dict[str, int] = state(dict)
    length: dict[str, float] = state(dict)
    courses: dict[str, list[list[Any]]] = state(dict)
    limit: dict[str, float] = state(dict)
    #: By process that trains: graphs of earlier steps that were looked for, and those that are held; and at some of the
    #: last steps the step, with Python's memory blocks.
    graphs: dict[str, list[int]] = state(dict)
    blocks: dict[str, list[list[int]]] = state(dict)

    def check_window(self, window: Window) -> Iterable[Finding]:
        """A finding after a window with more memory."""
        if window.last is None:
            return
        last = window.last.first if isinstance(window.last, JointStep) else window.last
        key = f"{window.stream}/{window.clock}"
        limit = window.samples("memory.limit").mean_of_instances
        if len(limit):
            self.limit[key] = float(limit[-1])
        self._note_held(window.last.views if isinstance(window.last, JointStep) else (last,))
        memory, single = window.samples("processes.memory"), window.samples("process.memory")
        rows = dict(zip(single.time_ns.tolist(), single.values.tolist(), strict=True))
        for time_ns, value in zip(memory.time_ns.tolist(), memory.mean_of_instances.tolist(), strict=True):
            of_each = zip(single.instances, rows.get(time_ns, ()), strict=False)
            processes = {name: number for name, number in of_each if math.isfinite(number)}
            row = [time_ns / 1e9, [last.train_step, last.end_ns / 1e9], value, processes]
            if self._add(key, list(row)):
                self.courses.pop(key + _BEGINNING, None)
                yield from self._judged(window, key)
            elif not self._is_long(key) and self._add(key + _BEGINNING, row):
                yield from self._judged(window, key + _BEGINNING)

    def finish(self, step: JointStep) -> Iterable[Finding]:
        """What is known of a run that is too short for a judgement."""
        for key in [key for key in self.courses if key.endswith(_BEGINNING)]:
            yield from self._judged(step, key, ended=True)

    def applicable(self, step: JointStep) -> str:
        """Not for runs that are too short."""
        few = self.open and not any(map(self._is_long, self.courses))
        return f"the run was sampled for less than {PARTS + 1} windows of {self.window_s:g} s" if few else ""

    def _is_long(self, key: str) -> bool:
        """Whether the windows of a whole course were compared."""
        return not key.endswith(_BEGINNING) and len(self.courses.get(key, ())) > PARTS

    def _note_held(self, views: Sequence[StepView]) -> None:
        for fact in (fact for view in views if (fact := view.latest_fact(facts.HeldGraphs.KIND)) is not None):
            held = fact.read(facts.HeldGraphs)
            if held is not None and len(self.graphs) < _MOST_PROCESSES:
                self.graphs[str(held.pid)] = [held.graphs, held.held]
                known = self.blocks.setdefault(str(held.pid), [])
                if held.blocks is not None and (not known or known[-1][0] < fact.global_step):
                    self.blocks[str(held.pid)] = [*known[1 - _POINTS :], [fact.global_step, held.blocks]]

    def _add(self, key: str, row: list[Any]) -> bool:
        """Takes in a sample; whether it begins a window, so that the one before is whole."""
        course, length = (
            self.courses.setdefault(key, []),
            self.length.setdefault(key, 1 / FINE if key.endswith(_BEGINNING) else 1),
        )
        number = int(row[0] // (length * self.window_s))
        if number == self.open.get(key):
            if course and row[2] < course[-1][2]:
                course[-1][2:] = row[2:]
            return False
        # The first window is not whole, and the memory of the first steps still grows.
        if key in self.open:
            course.append(row)
        self.open[key] = number
        if len(course) > _KEPT:
            pairs = list(zip(course[:-1:2], course[1::2], strict=False))
            self.courses[key] = [[*one[:2], *min(one[2:], other[2:], key=lambda each: each[0])] for one, other in pairs]
            self.length[key], self.open[key] = 2 * length, -1
        return len(self.courses[key]) > PARTS

    def _judged(self, window: Window | JointStep, key: str, *, ended: bool = False) -> Iterable[Finding]:
        beginning, key = key.endswith(_BEGINNING), key.removesuffix(_BEGINNING)
        whole = self.courses[key + _BEGINNING * beginning][:-1]  # the last one has just begun
        sizes = (2, 4) if beginning and not ended else PART_SIZES
        longest = [found for size in sizes if (found := self._growth(whole, size))]
        if not longest:
            return
        first, last = longest[-1]
        growth, took_s = last[2] - first[2], last[0] - first[0]
        steps, steps_s = (after - before for before, after in zip(first[1], last[1], strict=True))
        # Steps are known some time after samples, sometimes more and sometimes less, but they have a clock themselves.
        of_step = growth / took_s * steps_s / steps if steps > 0 and steps_s > 0 else 0.0
        evidence = {
            "bytes_per_second": growth / took_s, "growth_bytes": growth, "seconds": took_s,
            "bytes_before": first[2], "bytes_after": last[2],
        }  # fmt: skip
        limit = self.limit.get(key, 0.0)
        left_s = (limit - last[2]) * took_s / growth
        process = _grown(first[3], last[3], growth)
        symptom, what, objects = self._symptom(process)
        early = beginning and symptom != "graphs_held"
        if early and not (ended or 0 < left_s <= (PARTS + 1) * self.window_s):
            return
        if left_s > 0:
            evidence |= {"ends_in_s": left_s, "limit_bytes": limit}
        if objects:
            evidence["objects_per_step"] = objects
        ends = f"; at this rate the limit of {_bytes(limit)} is reached {_time(left_s)} after step {last[1][0]}"
        until = ends if left_s > 0 else ""
        each = f", {_bytes(of_step)} for each training step" if of_step else ""
        # A data set that is read into memory once looks the same for so long.
        symptom = "memory_grows_at_first" if beginning and symptom == "memory_grows" else symptom
        where = f", mostly in process {process}" if process and len(last[3]) > 1 else ""
        where += ", which does not train itself" if symptom == "memory_grows_beside_training" else ""
        yield self.finding(
            window,
            severity=Severity.INFO if early and ended else Severity.WARNING,
            subject=key.partition("/")[0],
            value=growth,
            limit=max(self.least_bytes, self.percent / 100 * first[2]),
            message=f"the memory of the run's processes grew from {_bytes(first[2])} to {_bytes(last[2])} in "
            f"{_time(took_s)}{where}{each}, and did not level off{what}{until}",
            symptoms=() if early and ended else (symptom,),
            evidence={**evidence, "bytes_per_step": of_step} if of_step else evidence,
        )

    def _symptom(self, process: str) -> tuple[str, str, float]:
        """The symptom, what the message says of it, and new objects of Python for each step, 0 if unknown."""
        if process and self.graphs and process not in self.graphs:
            return "memory_grows_beside_training", "", 0.0
        looked, held = self.graphs.get(process, [0, 0])
        if held >= _HELD:
            of = f"all {looked}" if held == looked else f"{held} of {looked}"
            return "graphs_held", f"; the graphs of {of} earlier steps that were looked at are still held", 0.0
        points = self.blocks.get(process, [])
        rises = [after[1] - before[1] for before, after in pairwise(points)]
        if len(rises) >= _RISES and min(rises) > 0:
            more, steps = points[-1][1] - points[0][1], points[-1][0] - points[0][0]
            if more >= max(_BLOCKS, _BLOCKS_OF_STEP * steps):
                each = more / steps
                return "python_objects_grow", f"; Python holds {each:.3g} more objects after each step", each
        return "memory_grows", "", 0.0

    def _growth(self, windows: list[list[Any]], size: int) -> tuple[list[Any], list[Any]] | None:
        """The windows with the least memory of the first and the last part, if it grew steadily between them."""
        found = steady_growth([each[2] for each in windows], size, self.least_bytes, self.percent)
        return (windows[found[0]], windows[found[1]]) if found is not None else None


def _grown(before: Mapping[str, float], after: Mapping[str, float], growth: float) -> str:
    """The process with at least half of the growth; "" where none has, or memory by process is not known."""
    grown = {name: number - before.get(name, 0.0) for name, number in after.items()}
    most = max(grown, key=lambda name: grown[name], default="")
    return most if most and 2 * grown[most] >= growth else ""


def _bytes(number: float) -> str:
    return f"{rounded(number / 1e9, 2)} GB" if number >= 1e9 else f"{number / 1e6:.3g} MB"


def _time(seconds: float) -> str:
    for unit, least in (("days", 2 * 86_400), ("hours", 2 * 3_600), ("minutes", 2 * 60)):
        if seconds >= least:
            return f"{rounded(seconds / (least / 2))} {unit}"
    return f"{rounded(seconds)} s"
