"""MemoryLeak: the memory of the run grows and does not level off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from watchglass.config import parameter
from watchglass.records import Finding, Severity
from watchglass.rules.needs import Needs, Windows
from watchglass.rules.rule import Rule, state
from watchglass.tables import JointStep, Window

#: Parts of a course: growth that levels off is missing in the last ones.
_PARTS = 4
#: Least memory of windows that is kept; then two windows become one.
_KEPT = 64
#: Least share of the whole growth in each part after the first; in a straight line each has a third.
_STEADY = 0.2


class MemoryLeak(Rule):
    """The resident memory of the run's processes grows steadily.

    Looks at: `processes.memory`, the least value in each window of `window_s` seconds after the first training step. So
        memory that is used and freed within a step, or within an epoch, does not count.
    Fires when: over four equal parts of the last windows the least memory rose in each part, by a fifth of the whole
        growth or more, and by `least_bytes` and `percent` percent together. Parts of 1, 2, 4 ... 16 windows are
        compared. The windows become longer in a long run, so a leak that takes days is found too.
    Usual causes: a list of losses or outputs that keeps the graph of each step; a cache or a hook that keeps tensors;
        samples that are Python objects, which each loader worker copies by and by.
    What to try: keep `loss.item()` or `loss.detach()`; look for what grows with `tracemalloc`; store samples in arrays.
    Costs: nothing in addition to the samples of the machine, which are recorded under a launcher.
    Source: 5 percent, 100 MB and three windows with growth: house.
    """

    needs = (
        Needs(metrics=("processes.memory",), why="to see whether it grows"),
        Needs(metrics=("memory.limit",), optional=True),
    )
    streams = Windows(kinds=("samples",), length_s=1)

    window_s: float = parameter(60.0, help="time of which the least memory counts", unit="s", ge=0.1)
    least_bytes: float = parameter(1e8, help="least growth", unit="bytes", gt=0)
    percent: float = parameter(5.0, help="least growth relative to the first part", unit="%", ge=0)

    #: By stream and clock: number of the open window, length of windows in units of ``window_s``, and for each window
    #: seconds, training step and least memory.
    open: dict[str, int] = state(dict)
    length: dict[str, int] = state(dict)
    courses: dict[str, list[list[float]]] = state(dict)
    limit: dict[str, float] = state(dict)

    def check_window(self, window: Window) -> Iterable[Finding]:
        """A finding after a window with more memory."""
        if window.last is None:
            return
        last = window.last.first if isinstance(window.last, JointStep) else window.last
        key = f"{window.stream}/{window.clock}"
        limit = window.samples("memory.limit").mean_of_instances
        if len(limit):
            self.limit[key] = float(limit[-1])
        memory = window.samples("processes.memory")
        for time_ns, value in zip(memory.time_ns.tolist(), memory.mean_of_instances.tolist(), strict=True):
            if self._add(key, time_ns / 1e9, last.train_step, value):
                yield from self._judged(window, key)

    def applicable(self, step: JointStep) -> str:
        """Not for runs that are too short."""
        few = self.open and max(map(len, self.courses.values())) <= _PARTS
        return f"the run was sampled for less than {_PARTS + 1} windows of {self.window_s:g} s" if few else ""

    def _add(self, key: str, seconds: float, step: int, value: float) -> bool:
        """Takes in a sample; whether it begins a window, so that the one before is whole."""
        course, length = self.courses.setdefault(key, []), self.length.setdefault(key, 1)
        number = int(seconds // (length * self.window_s))
        if number == self.open.get(key):
            if course:
                course[-1][2] = min(course[-1][2], value)
            return False
        # The first window is not whole, and the memory of the first steps still grows.
        if key in self.open:
            course.append([seconds, step, value])
        self.open[key] = number
        if len(course) > _KEPT:
            pairs = list(zip(course[:-1:2], course[1::2], strict=False))
            self.courses[key] = [[*one[:2], min(one[2], other[2])] for one, other in pairs]
            self.length[key], self.open[key] = 2 * length, -1
        return len(self.courses[key]) > _PARTS

    def _judged(self, window: Window, key: str) -> Iterable[Finding]:
        whole = self.courses[key][:-1]  # the last one has just begun
        longest = [found for size in (1, 2, 4, 8, 16) if (found := self._growth(whole[-_PARTS * size :], size))]
        if not longest:
            return
        first, last = longest[-1]
        growth, took_s, steps = last[2] - first[2], last[0] - first[0], int(last[1] - first[1])
        evidence = {"bytes_per_second": growth / took_s, "growth_bytes": growth}
        limit = self.limit.get(key, 0.0)
        left_s = (limit - last[2]) * took_s / growth
        until = f"; at this rate the limit of {_bytes(limit)} is reached in {_time(left_s)}" if left_s > 0 else ""
        each = f", {_bytes(growth / steps)} for each training step" if steps > 0 else ""
        yield self.finding(
            window,
            severity=Severity.WARNING,
            subject=window.stream,
            value=growth,
            limit=max(self.least_bytes, self.percent / 100 * first[2]),
            message=f"the memory of the run's processes grew from {_bytes(first[2])} to {_bytes(last[2])} in "
            f"{_time(took_s)}{each}, and did not level off{until}",
            symptoms=("memory_grows",),
            evidence={**evidence, "bytes_per_step": growth / steps} if steps > 0 else evidence,
        )

    def _growth(self, windows: list[list[float]], size: int) -> tuple[list[float], list[float]] | None:
        """The windows with the least memory of the first and the last part, if it grew steadily between them."""
        if len(windows) < _PARTS * size:
            return None
        least = list(_least(windows, size))
        rises = [after[2] - before[2] for before, after in pairwise(least)]
        whole = least[-1][2] - least[0][2]
        grew = whole >= max(self.least_bytes, self.percent / 100 * least[0][2])
        return (least[0], least[-1]) if grew and min(rises) >= _STEADY * whole else None


def _least(windows: list[list[float]], size: int) -> Iterator[list[float]]:
    for begin in range(0, _PARTS * size, size):
        yield min(windows[begin : begin + size], key=lambda each: each[2])


def _bytes(number: float) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.3g} MB"


def _time(seconds: float) -> str:
    for unit, least in (("days", 2 * 86_400), ("hours", 2 * 3_600), ("minutes", 2 * 60)):
        if seconds >= least:
            return f"{seconds / (least / 2):.0f} {unit}"
    return f"{seconds:.0f} s"
