"""A window that is still to come, or open: when it begins and ends, and why it does not begin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from watchglass.capture.profiling.windows import DueWindow, OpenWindow, WindowFacts, WindowProfiler
from watchglass.config import MOST_PROFILED_STEPS, ProfiledRange
from watchglass.records import DeclaredFact, Fact, OperatorWindow, WindowFrame

S = 1_000_000_000
STEPS, SECONDS = DueWindow(ProfiledRange(10, 12)), DueWindow(ProfiledRange(2.0, 5.0, timed=True))
REQUESTED = DueWindow(ProfiledRange(10, 12), request=0, asked=4)


@dataclass
class Profiler:
    """Reads ``result``, or raises it."""

    result_of: Any
    kind: str = "operators"
    freed: list[Any] = field(default_factory=list)

    def result(self, recording: Any, frame: WindowFrame, *, writes: bool) -> OperatorWindow:
        if isinstance(self.result_of, Exception):
            raise self.result_of
        return OperatorWindow(frame.first_step, frame.end_step, (), *frame[2:], f"writes={writes}")

    def free(self, recording: Any) -> None:
        self.freed.append(recording)


@dataclass
class Facts:
    """In place of a hook."""

    found: list[Fact] = field(default_factory=list)

    def add_fact(self, fact: DeclaredFact, source: str) -> None:
        self.found.append(fact.to_fact(source))


def opened(due: DueWindow, first: int) -> OpenWindow:
    return OpenWindow(due, "recording", first, 0, [0.25, 0.75], first)


@pytest.mark.parametrize(
    ("window", "step", "trained_ns", "reached"),
    [(STEPS, 9, 99 * S, False), (STEPS, 10, 0, True), (SECONDS, 99, 2 * S - 1, False), (SECONDS, 1, 2 * S, True)],
)
def test_a_window_begins_by_its_unit(window: DueWindow, step: int, trained_ns: int, *, reached: bool) -> None:
    assert window.is_reached(step, trained_ns) is reached


@pytest.mark.parametrize(
    ("window", "step", "trained_ns", "reason"),
    [
        (STEPS, 10, 0, ""),
        (STEPS, 11, 0, "its first step was over: step 11 comes next"),
        (REQUESTED, 11, 0, ""),
        (SECONDS, 50, 5 * S - 1, ""),
        (SECONDS, 50, 5 * S, "no step began in this time, or another window was open"),
    ],
)
def test_only_a_window_of_the_configuration_comes_too_late(
    window: DueWindow, step: int, trained_ns: int, reason: str
) -> None:
    assert window.missed(step, trained_ns) == reason


def test_a_window_waits_in_vain_once_it_would_have_begun() -> None:
    assert [window.waits_in_vain(step) for window, step in ((STEPS, 10), (STEPS, 11))] == [False, True]
    assert [window.waits_in_vain(step) for window, step in ((SECONDS, 1), (SECONDS, 2))] == [False, True]
    late = DueWindow(ProfiledRange(10, 12), request=0, asked=40)
    assert [window.waits_in_vain(step) for window, step in ((REQUESTED, 25), (REQUESTED, 26))] == [False, True]
    assert [window.waits_in_vain(step) for window, step in ((late, 55), (late, 56))] == [False, True]


def test_a_window_of_steps_has_its_number_of_them_wherever_it_begins() -> None:
    window = opened(REQUESTED, 13)
    assert window.steps == ProfiledRange(13, 15)
    window.inside_s.append(1.0)
    assert [window.reach(step, 0) for step in (14, 15)] == [False, True]
    assert (window.frame.first_step, window.frame.end_step, window.note) == (13, 15, "")


def test_a_window_of_seconds_ends_by_time_or_with_the_most_steps() -> None:
    assert [opened(SECONDS, 7).reach(8, at) for at in (5 * S - 1, 5 * S)] == [False, True]
    window = opened(SECONDS, 7)
    assert not window.reach(7 + MOST_PROFILED_STEPS - 1, 3 * S)
    assert not window.note
    assert window.reach(7 + MOST_PROFILED_STEPS, 3 * S)
    assert window.note == f"a window has at most {MOST_PROFILED_STEPS} steps"


def test_a_window_of_the_configuration_loses_the_step_at_which_it_could_not_begin() -> None:
    assert opened(STEPS, 10).later == DueWindow(ProfiledRange(11, 12))
    assert opened(STEPS, 11).later is None
    assert opened(REQUESTED, 13).later is REQUESTED
    assert opened(SECONDS, 13).later is SECONDS


def test_windows_that_are_over_are_read_once_and_freed_also_where_that_fails() -> None:
    hook, good, bad = Facts(), Profiler("operator_window"), Profiler(ValueError("no events"))
    for profiler in (good, bad):
        facts, window = WindowFacts(hook.add_fact, cast(WindowProfiler, profiler)), opened(STEPS, 10)
        window.inside_s += [1.0, 3.0]
        window.reached = 12
        facts.add(window)
        facts.read(writes=False)
        facts.read()
        assert profiler.freed == ["recording"]
    read, refused = hook.found
    assert (read.kind, read.data["trace"], read.data["cost"]["inside_s"]) == ("operator_window", "writes=False", 2.0)
    assert (refused.kind, refused.data["window"]) == ("window_refused", "10:12")
    assert refused.data["reason"] == "its events were not read: ValueError: no events"
