"""Processes that write the profiler report: when one follows another."""

from __future__ import annotations

from collections.abc import Callable

from watchglass.launch.profiler_report import ReportRewriting


class Writing:
    """A process that ends when a test says so."""

    def __init__(self) -> None:
        self.over, self.failure, self.left = False, "", False

    def wait(self, timeout_s: float = 0.0) -> bool:
        return self.over

    def leave(self) -> None:
        self.left = True

    end = leave


class Rewriting:
    """A rewriting with a clock and with processes of the test."""

    def __init__(self, start: Callable[[], object] | None = None) -> None:
        self.now, self.began, self.said = 0.0, list[Writing](), list[str]()
        self.writer = ReportRewriting(
            start or self._start,  # type: ignore[arg-type]
            60,
            self.said.append,
            now=lambda: self.now,
        )

    def _start(self) -> Writing:
        self.began.append(Writing())
        return self.began[-1]

    def look(self, now: float) -> int:
        self.now = now
        self.writer.look()
        return len(self.began)


def test_a_report_is_written_at_each_interval_and_one_at_a_time() -> None:
    rewriting = Rewriting()
    assert [rewriting.look(now) for now in (0, 59, 60, 90, 130)] == [0, 0, 1, 1, 1]
    rewriting.began[0].over = True
    assert rewriting.look(131) == 1, "it took 71 s of 60 s + 71 s: a longer pause follows"
    assert rewriting.began[0].left
    assert [rewriting.look(now) for now in (60 + 71 / 0.2 - 1, 60 + 71 / 0.2)] == [1, 2]
    rewriting.writer.close()
    assert rewriting.began[1].left


def test_the_first_failure_alone_is_reported() -> None:
    rewriting = Rewriting()
    for turn in (1, 2):
        assert rewriting.look(60 * turn) == turn
        rewriting.began[-1].over, rewriting.began[-1].failure = True, "the disk is full"
        rewriting.look(60 * turn)
    assert rewriting.said == ["no profiler report yet: the disk is full; it is tried again"]


def test_a_process_that_cannot_be_started_is_a_failure() -> None:
    def fail() -> None:
        raise OSError(12, "Cannot allocate memory")

    rewriting = Rewriting(fail)
    rewriting.look(60)
    assert rewriting.said == ["no profiler report yet: Cannot allocate memory; it is tried again"]
