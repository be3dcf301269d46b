"""Requests for profiled windows: which step they name, what is refused, and waiting for an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from watchglass.errors import EndOfRunError, InvalidValueError, ProfileRefusedError, StepNotReadyError
from watchglass.records import OperatorTotals, OperatorWindow, WindowRefusal
from watchglass.run import Operators, ProfileRequest, open_run
from watchglass.testing import RunBuilder, build_run
from watchglass.view import export_parquet

ROWS = (OperatorTotals("aten::mm", 2, 0.1, 0.1),)


def window(first: int, request: int | None, steps: int = 2) -> OperatorWindow:
    return OperatorWindow(first, first + steps, ROWS, request=request)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RunBuilder]:
    """A running job with ten steps of 0.1 s."""
    with RunBuilder(tmp_path / "run") as builder:
        for _ in range(10):
            builder.step(scalars={"loss": 1.0})
        yield builder


def waited(
    request: ProfileRequest[Operators], *happenings: Callable[[], object], timeout_s: float | None = None
) -> list[Operators]:
    """The result of ``wait``; at each pause one of ``happenings``."""
    left, time_s = list(happenings), [0.0]

    def sleep(seconds: float) -> None:
        time_s[0] += seconds
        if left:
            left.pop(0)()

    return request.wait(timeout_s, now=lambda: time_s[0], sleep=sleep)


def test_one_worker_is_asked_for_its_next_steps(job: RunBuilder) -> None:
    request = open_run(job.store.location).profile(3)
    assert (request.attempt, request.number, request.steps) == (0, 0, range(10, 13))


def test_several_workers_get_the_time_to_read_the_request_in_their_steps(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run", workers=2) as builder:
        for _ in range(10):
            builder.step(scalars={"loss": 1.0}, seconds=0.1)
        run = open_run(tmp_path / "run")
        intervals = run.store.policy.intervals(2)
        at_least_s = intervals.flush_s + intervals.control_s
        assert 10 + at_least_s / 0.1 <= run.profile(3).steps.start <= 10 + 3 * at_least_s / 0.1
        assert run.profile(3, start=10).steps == range(10, 13), "the start that is given counts"


def test_before_the_first_step_the_window_begins_at_step_1(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        assert open_run(builder.store.location).profile(3).steps == range(1, 4)


def test_requests_that_cannot_be_met_are_refused_in_one_line(job: RunBuilder) -> None:
    run = open_run(job.store.location)
    for steps, start, line in (
        (0, None, r"steps of a profile window must be a whole number of at least 1 but got 0"),
        (1001, None, r"must be at most 1000 but got 1001"),
        (5, 0, r"start must be a step from 1 on.* but got 0"),
        (5, 9, r"step 9 of .* is over, it has steps up to 9; choose a later start"),
    ):
        with pytest.raises(InvalidValueError, match=line):
            run.profile(steps, start=start)
    run.profile(5, start=20)
    with pytest.raises(InvalidValueError, match=r"steps 24:29 overlap steps 20:25, which were requested before"):
        run.profile(5, start=24)


@pytest.mark.parametrize("status", ["finished", None])
def test_a_run_that_has_ended_is_refused(tmp_path: Path, status: str | None) -> None:
    build_run(tmp_path / "run", [{"scalars": {"loss": 1.0}}], status=status)
    with pytest.raises(EndOfRunError, match=r"run has ended, so nothing of it can be profiled"):
        open_run(tmp_path / "run").profile()
    assert not (tmp_path / "run" / "control").exists()


def test_an_earlier_attempt_is_refused(job: RunBuilder) -> None:
    earlier = open_run(job.store.location, attempt=0)
    with RunBuilder(job.store):
        with pytest.raises(EndOfRunError, match="attempt 0 has ended"):
            earlier.profile()
        assert open_run(job.store.location).profile().attempt == 1


def test_the_answer_to_this_request_is_waited_for(job: RunBuilder) -> None:
    run = open_run(job.store.location)
    other, request = run.profile(2, start=20), run.profile(2, start=30)

    def answer(number: int | None) -> None:
        job.facts([window(40, number).to_fact("test")])
        job.flush()

    found = waited(request, lambda: answer(None), lambda: answer(other.number), lambda: answer(request.number))
    assert [(each.steps, each.request) for each in found] == [(range(40, 42), 1)]
    assert request.refused == {}


def test_each_worker_is_waited_for_and_one_may_refuse(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run", workers=2) as builder:
        builder.step(scalars={"loss": 1.0})
        request = open_run(tmp_path / "run").profile(2, start=20)

        def answer(rank: int) -> None:
            fact = window(20, 0).to_fact("test") if rank else WindowRefusal(20, 22, "it is busy", 0).to_fact("test")
            builder.workers[rank].facts.append(fact)
            builder.flush()

        with pytest.raises(StepNotReadyError, match=r"steps 20:22 is not recorded after 3 s; the request remains"):
            waited(request, lambda: answer(0), timeout_s=3.0)
        waited(request, lambda: answer(1))
        assert [each.worker for each in request.windows] == ["worker_1"]
        assert request.refused == {"worker_0": "it is busy"}


def test_a_refusal_of_all_is_raised_with_its_reason(job: RunBuilder) -> None:
    request = open_run(job.store.location).profile(1)

    def refuse() -> None:
        job.facts([WindowRefusal(10, 11, "the profiler is off", 0).to_fact("test")])
        job.flush()

    with pytest.raises(ProfileRefusedError, match="1 training step not profiled: the profiler is off"):
        waited(request, refuse)


def test_waiting_ends_with_the_run(job: RunBuilder) -> None:
    request = open_run(job.store.location).profile(2)
    with pytest.raises(EndOfRunError, match="ended before 2 training steps were profiled"):
        waited(request, job.leave)


def test_operators_are_a_table_for_sql_and_export(job: RunBuilder, tmp_path: Path) -> None:
    run = open_run(job.store.location)
    assert len(run.table("operators")) == 0
    job.facts([window(4, None).to_fact("test"), window(8, 0).to_fact("test")])
    job.flush()
    with RunBuilder(job.store) as second:
        second.facts([window(2, 0, steps=3).to_fact("test")])
        second.flush()
        run.refresh()
        found = run.sql("select attempt, first_step, end_step, request, operator, calls from operators").to_arrow()
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (0, 4, 6, None, "aten::mm", 2), (0, 8, 10, 0, "aten::mm", 2), (1, 2, 5, 0, "aten::mm", 2),
    ]  # fmt: skip
    written = {each.name: each.rows for each in export_parquet(run, str(tmp_path / "out"))}
    assert written["operators.parquet"] == 3
    exported = pq.read_table(tmp_path / "out" / "operators.parquet")
    assert exported.column_names == ["run", *run.table("operators").columns]
    assert exported["self_cpu_s"].to_pylist() == [0.1, 0.1, 0.1]


def test_a_window_that_begins_at_once_is_compared_with_the_recorded_steps_before(job: RunBuilder) -> None:
    job.facts([window(8, 0).to_fact("test"), window(0, 1).to_fact("test")])
    job.flush()
    late, first = (open_run(job.store.location).operators()[place] for place in (1, 0))
    assert late.cost.outside_s == pytest.approx(0.1)
    assert first.cost.outside_s != first.cost.outside_s, "no step was before"
