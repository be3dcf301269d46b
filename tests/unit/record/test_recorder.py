"""The recorder: what it drops when it cannot keep up, in which order, and that it counts it; one thread, and when."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from waiting import PATIENCE_S, until
from watchglass.config import Timing
from watchglass.control import Commit, Stop
from watchglass.errors import ForkedError, NoRoomError, NotARunError, RunExistsError, StoreError
from watchglass.record import Captured, CapturedRecords, OpenStep, Recorder, SteadyRow
from watchglass.record.backlog import Backlog
from watchglass.record.flight_recorder import FlightRecorder
from watchglass.record.steady_rows import STEADY_ROW_BYTES
from watchglass.record.step_encoding import queued_bytes
from watchglass.record.step_queue import StepQueue
from watchglass.records import (
    FACTS,
    RAW,
    REDUCTIONS,
    SCALARS,
    STATISTICS,
    UNITS,
    Fact,
    Mode,
    Reduction,
    Role,
    TensorInfo,
    UnitKind,
    facts,
)
from watchglass.stats import of_array
from watchglass.store import ABSENT, RawTensor, Rings, scan
from watchglass.tables import WorkerTables

LOSS, WEIGHT = 1, 2
#: Looks for changes all the time.
QUICK = Timing(flight_copy_s=0.001, recorder_look_s=0.001)
TENSORS = [TensorInfo(LOSS, "loss", Role.LOSS, dtype="float64"), TensorInfo(WEIGHT, "w", Role.WEIGHT, shape=(4,))]


class Writer:
    """Takes frames, unless the test lets it refuse."""

    rings: Rings | None = None
    flush_s = 600.0
    urgent_s = patience_s = closing_s = 0.0

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.raw: list[int] = []
        self.refuses = self.tries = 0
        self.closed = False
        self.threads: set[str] = set()

    def write(self, frames: list[bytes]) -> None:
        self.threads.add(threading.current_thread().name)
        self.tries += 1
        if self.refuses:
            self.refuses -= 1
            raise StoreError("the disk is full; free some space")
        self.frames += frames

    def write_tensors(self, tensors: list[tuple[int, RawTensor]]) -> list[dict[str, Any]]:
        self.raw += [step for step, _ in tensors]
        return [
            {"global_step": step, "tensor_id": row.tensor_id, "file": "f", "key": str(step)} for step, row in tensors
        ]

    def close(self) -> bool:
        self.closed = True
        return True

    def tables(self) -> WorkerTables:
        found = WorkerTables()
        for frame in scan(b"".join(self.frames)).frames:
            found.ingest(frame)
        assert not found.problems
        return found


class Opening:
    """Opens the writer at once."""

    patience_s = 0.0

    def __init__(self, opened: Callable[[], Writer]) -> None:
        self.opened = opened
        self.abandoned = 0

    def __call__(self) -> Writer:
        return self.opened()

    def abandon(self) -> None:
        self.abandoned += 1


def recorder(writer: Writer | Callable[[], Writer], queue_bytes: int = 1 << 20, **settings: Any) -> Recorder:
    opened = (lambda: writer) if isinstance(writer, Writer) else writer
    made = Recorder(Opening(opened), flush_interval_s=600.0, queue_bytes=queue_bytes, **settings)
    for tensor in TENSORS:
        made.add_tensor(tensor)
    return made


def step(number: int, *, raw: int = 1) -> OpenStep:
    """A finished step with everything that a step can hold."""
    made = OpenStep(number, Mode.TRAIN, number, number, 10 * number, due=True, updated=True, end_ns=10 * number + 5)
    records = made.records
    array = np.arange(4.0) + number
    records.rows[SCALARS] = [(LOSS, 1.0, 1.0 / (number + 1))]
    records.rows[STATISTICS] = [Captured([WEIGHT], of_array(array)[None])]
    records.rows[REDUCTIONS] = [(WEIGHT, Reduction.MEDIAN, float(np.median(array)))]
    records.rows[UNITS] = [(WEIGHT, UnitKind.INACTIVE, array < 2)]
    records.rows[FACTS] = [("seen", "test", {"number": number})]
    records.rows[RAW] = [RawTensor(WEIGHT, array)] * raw
    return made


def holds(tables: WorkerTables, number: int) -> set[str]:
    """Of what a step has, what was written."""
    found = {
        "raw": bool(tables.rows(RAW, number)),
        "statistics": len(tables.statistics.at(number).ids) > 0,
        "reductions": bool(tables.rows(REDUCTIONS, number)),
        "units": bool(tables.rows(UNITS, number)),
        "scalars": bool(tables.rows(SCALARS, number)),
        "facts": bool(tables.facts(number)),
        "end": number in tables.steps,
    }
    return {name for name, there in found.items() if there}


def is_let_go(give: Callable[[Any], object], make: Callable[[], Any]) -> bool:
    """Whether what a recorder got is in memory no longer; of a step: what was recorded of it."""
    what = make()
    reference = weakref.ref(what.records.rows[UNITS][0][2] if isinstance(what, OpenStep) else what)
    give(what)
    del what
    gc.collect()
    return reference() is None


OF_TENSORS = {"statistics", "reductions", "units"}
EVERYTHING = {"raw", "scalars", "facts", "end", *OF_TENSORS}


def test_everything_that_fits_is_written() -> None:
    writer = Writer()
    made = recorder(writer)
    for number in range(3):
        made.put(step(number))
    made.put_row(SteadyRow(3, 3, 30, 35, 0.25, 0.1, 1.0))
    made.row_ids = (LOSS, WEIGHT)
    made.start()
    assert made.close("finished", {"callback_ns": 7})
    tables = writer.tables()
    assert [holds(tables, number) for number in range(3)] == [EVERYTHING] * 3
    assert holds(tables, 3) == {"scalars", "end"}
    (left,) = tables.lifecycle
    assert (left["event"], left["status"], left["counters"]["callback_ns"]) == ("left", "finished", 7)
    raw = 3 * np.zeros(4).nbytes
    assert left["counters"]["bytes_written"] == raw + sum(map(len, writer.frames[:-1]))
    assert left["counters"]["recorder_cpu_ns"] > 0
    assert not any(left["counters"]["dropped"].values())
    assert writer.closed


@pytest.mark.parametrize("refusals", [0, 2])
@pytest.mark.parametrize("steady", [False, True])
def test_what_comes_after_the_last_step_is_of_the_last_training_step(steady: bool, refusals: int) -> None:
    writer = Writer()
    writer.refuses, writer.patience_s = refusals, PATIENCE_S
    made = recorder(writer)
    made.row_ids = (LOSS, 0)
    made.put(step(0))
    if steady:
        made.put_row(SteadyRow(1, 1, 10, 15, 0.25, ABSENT, 1.0))
    else:
        made.put(step(1))
    made.put(OpenStep(2, Mode.EVAL, 0, 1, 20, end_ns=25))
    made.start()
    late = CapturedRecords()
    late.rows[SCALARS] = [(WEIGHT, 1.0, 7.0), (LOSS, 1.0, 3.0)]
    late.add_fact(facts.NotCapturable(("x",)), "test")
    assert made.close("finished", {}, late=late)
    tables = writer.tables()
    assert sorted(tables.steps) == [0, 1, 2]
    assert [(row[0].name, row[-1]) for row in tables.rows(SCALARS, 1)] == [("loss", 3.0), ("w", 7.0)]
    assert [fact.kind for fact in tables.facts(1)][-1] == "not_capturable"


def test_a_full_queue_drops_raw_tensors_then_statistics_then_scalars_and_facts_and_counts_all() -> None:
    writer = Writer()
    full, light = sum(queued_bytes(step(0).records)), sum(queued_bytes(step(0, raw=0).records))
    made = recorder(writer, queue_bytes=8 * full)
    kept: list[set[str]] = []
    for number in range(60):
        all_share = made.peak_bytes / (8 * full)
        # Each step that kept its raw tensor waits with it.
        share = all_share - sum("raw" in each for each in kept) * (full - light) / (8 * full)
        made.put(step(number))
        kept.append(
            EVERYTHING - ({"raw"} if all_share > 0.5 else set()) - (OF_TENSORS if share > 0.75 else set())
            - ({"scalars", "facts"} if share > 1 else set()) - ({"end"} if share > 2 else set())
        )  # fmt: skip
    assert light < full
    made.start()
    made.close("finished", {})
    tables = writer.tables()
    assert [holds(tables, number) for number in range(60)] == kept
    raw, statistics, facts, ends = (
        sum(name in held for held in kept) for name in ("raw", "statistics", "facts", "end")
    )  # fmt: skip
    assert 0 < raw < statistics < facts < ends < 60
    assert made.dropped == {
        "raw": ends - raw,
        "statistics": 3 * (ends - statistics),
        "scalars": ends - facts,
        "facts": ends - facts,
        "steps": 60 - ends,
    }
    (left,) = tables.lifecycle
    assert left["counters"]["dropped"] == made.dropped
    assert made.peak_bytes <= 2 * 8 * full + full


def test_there_is_pressure_while_statistics_are_being_dropped_and_no_longer() -> None:
    light = sum(queued_bytes(step(0, raw=0).records))
    made = recorder(Writer(), queue_bytes=8 * light)
    pressed = []
    for number in range(12):
        before = made.dropped["statistics"]
        pressed.append(made.pressure)
        made.put(step(number, raw=0))
        assert pressed[-1] == (made.dropped["statistics"] > before), number
    assert pressed == [False] * 7 + [True] * 5
    made.start()
    made.urgent()
    until(lambda: not made.pressure)
    made.close("finished", {})


def test_rows_of_steady_steps_are_bounded_too() -> None:
    writer = Writer()
    made = recorder(writer, queue_bytes=10 * STEADY_ROW_BYTES)
    for number in range(100):
        made.put_row(SteadyRow(number, number, number, number + 1, 0.5, 0.1, 1.0))
    made.row_ids = (LOSS, WEIGHT)
    made.start()
    made.close("finished", {})
    kept = len(writer.tables().steps)
    assert 10 <= kept <= 22
    assert made.dropped["steps"] == 100 - kept


def test_dropped_statistics_are_counted_by_tensor() -> None:
    made = recorder(Writer(), queue_bytes=sum(queued_bytes(step(0, raw=0).records)) + 100)
    for number in range(2):
        many = step(number, raw=0)
        if not number:
            made.put(many)
            continue
        many.records.rows[STATISTICS] = [Captured([WEIGHT] * 7, np.zeros((7, 11)))]
        made.put(many)
    assert made.dropped["statistics"] == 7 + 2


def test_there_is_room_again_once_records_were_taken() -> None:
    writer = Writer()
    made = recorder(writer, queue_bytes=4 * sum(queued_bytes(step(0).records)))
    made.start()
    for number in range(40):
        made.put(step(number))
        made.urgent()
        until(lambda at=number: at in writer.raw)
    assert not made.pressure
    made.close("finished", {})
    assert not any(made.dropped.values())
    assert [holds(writer.tables(), number) for number in range(40)] == [EVERYTHING] * 40


@pytest.mark.parametrize("refusals", [1, 3])
def test_what_a_store_refuses_is_written_when_it_takes_it_again(refusals: int) -> None:
    writer = Writer()
    writer.refuses = refusals
    made = recorder(writer, timing=Timing(write_pauses_s=(0.001, 0.001)))
    made.put(step(0))
    made.start()
    made.urgent()
    until(lambda: writer.frames)
    assert (writer.refuses, writer.tries) == (0, refusals + 1)
    assert holds(writer.tables(), 0) == EVERYTHING
    made.close("finished", {})
    assert not any(made.dropped.values())


@pytest.mark.parametrize("bound", [6_000, 20_000, 60_000])
def test_what_a_store_refuses_for_long_is_bounded_and_what_ids_mean_survives(
    caplog: pytest.LogCaptureFixture, bound: int
) -> None:
    writer = Writer()
    writer.refuses = 200
    backlog = Backlog(bound)
    for number in range(200):
        backlog.add_steps([step(number)], TENSORS if number == 0 else [], writer, (0, 0))
        with pytest.raises(StoreError) as refused:
            backlog.write(writer)
        backlog.keep_what_fits(refused.value)
        assert backlog.waiting_bytes <= bound
    backlog.add_steps([step(200)], [], writer, (0, 0))
    backlog.write(writer)
    tables = writer.tables()
    assert {row.name for row in tables.catalog} == {"loss", "w"}
    assert holds(tables, 200) == EVERYTHING
    held = [holds(tables, number) for number in range(200)]
    raw, statistics, scalars, facts, ends = (
        sum(name in each for each in held) for name in ("raw", "statistics", "scalars", "facts", "end")
    )  # fmt: skip
    assert raw <= statistics <= scalars <= facts <= ends
    assert (statistics > 0) == (bound > 50_000)
    assert (0 < facts < 200) == (10_000 < bound < 50_000)
    assert (ends < 200) == (bound < 10_000)
    # The oldest go first.
    assert all(("end" in each) == (number >= 200 - ends) for number, each in enumerate(held))
    lost = backlog.lost
    assert lost["raw"] == 200 - raw
    assert lost["statistics"] == sum(3 - len(OF_TENSORS & each) for each in held)
    assert (lost["scalars"], lost["facts"], lost["steps"]) == (200 - scalars, 200 - facts, 200 - ends)
    assert len(caplog.messages) == 1, "one warning for one disk that is full"


def test_a_recorder_that_has_failed_keeps_nothing_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    def refused() -> Writer:
        raise StoreError("the folder cannot be written")

    made = recorder(refused)
    made.put(step(0))
    made.start()
    assert made.close("finished", {})
    assert is_let_go(made.put, lambda: step(1))
    made.put_row(SteadyRow(2, 2, 30, 35, 0.25, 0.1, 1.0))
    assert made.dropped["steps"] == 3
    assert ["recording stopped" in message for message in caplog.messages] == [False, True]
    assert "records are buffered in memory" in caplog.messages[0]


def test_a_recorder_that_breaks_counts_what_had_not_arrived_and_holds_nothing_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "watchglass")  # a kept message has the error, and with it the steps

    class Breaking(Writer):
        def write(self, frames: list[bytes]) -> None:
            self.tries += 1
            raise StoreError("unreachable") if self.refuses else RuntimeError("injected")

    writer = Breaking()
    writer.refuses = 1
    made = recorder(writer, timing=QUICK)
    held = []
    for number in range(3):
        made.put(found := step(number))
        held.append(weakref.ref(found.records.rows[UNITS][0][2]))
    made.start()
    made.urgent()
    until(lambda: writer.tries)
    for number in range(3, 6):
        made.put(found := step(number))
        held.append(weakref.ref(found.records.rows[UNITS][0][2]))
    del found
    writer.refuses = 0
    assert made.close("finished", {})
    assert (made.dropped["steps"], made.dropped["statistics"]) == (6, 18)
    assert is_let_go(made.add_tensor, lambda: TensorInfo(3, "other", Role.WEIGHT))
    assert is_let_go(made.add_fact, lambda: Fact("resumed", -1, "given", {}))
    assert is_let_go(made.put, lambda: step(6))
    assert made.dropped["steps"] == 7
    assert not made.pressure
    gc.collect()
    assert [number for number, reference in enumerate(held) if reference() is not None] == []


def test_raw_tensors_that_are_larger_than_the_queue_cost_no_step_its_numbers() -> None:
    """A slow disk takes seconds for them, in which a run makes thousands of steps."""
    writer = Writer()
    light = sum(queued_bytes(step(0, raw=0).records))
    made = recorder(writer, queue_bytes=8 * light)
    huge = step(0)
    huge.records.rows[RAW] = [RawTensor(WEIGHT, np.zeros(8 * light))]
    made.put(huge)
    for number in range(1, 4):
        made.put(step(number))
    made.put_row(SteadyRow(4, 4, 40, 45, 0.25, 0.1, 1.0))
    made.row_ids = (LOSS, WEIGHT)
    made.start()
    made.close("finished", {})
    tables = writer.tables()
    assert [holds(tables, number) for number in range(4)] == [EVERYTHING, *[EVERYTHING - {"raw"}] * 3]
    assert holds(tables, 4) == {"scalars", "end"}
    assert made.dropped == {"raw": 3, "statistics": 0, "scalars": 0, "facts": 0, "steps": 0}
    assert made.peak_bytes >= 64 * light


def test_what_wakes_the_thread_is_there_when_it_wakes() -> None:
    seen: list[int] = []

    class Wake(threading.Event):
        def set(self) -> None:
            seen.append(len(queue))

    queue = StepQueue(1 << 10, FlightRecorder(), Wake())
    queue.put(step(0))
    queue.put(step(1, raw=0))
    assert seen == [1], "only raw tensors fill the queue before its time"


def test_one_thread_from_the_start_to_the_end() -> None:
    def own() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("watchglass")]

    writer = Writer()
    made = recorder(writer)
    made.put(step(0))
    assert made.close("finished", {}), "a recorder that was never started has nothing to end"
    assert not own()
    assert not writer.frames
    made.start()
    assert own() == ["watchglass-recorder"]
    for number in range(1, 50):
        made.put(step(number))
        made.urgent()
    assert own() == ["watchglass-recorder"]
    made.close("finished", {})
    assert not own()
    assert writer.threads == {"watchglass-recorder"}


def test_a_stop_is_reported_once_with_the_last_step_seen() -> None:
    asked: list[int] = []

    class Control:
        def poll(self, train_step: int) -> list[Commit]:
            asked.append(train_step)
            return [Commit(99, Stop("asked for"))] if train_step >= 1 else []

        def close(self) -> None:
            asked.append(99)

    commits: list[Commit] = []
    made = recorder(Writer(), on_commit=commits.append, timing=QUICK)
    made.listen(Control())
    made.start()
    until(lambda: asked)
    made.put_row(SteadyRow(1, 1, 30, 35, 0.25, 0.1, 1.0))
    until(lambda: 99 in asked)
    made.close("finished", {})
    assert commits == [Commit(99, Stop("asked for"))]
    assert asked == [-1] * (len(asked) - 2) + [1, 99], "there is no look once it is known"


def test_a_store_that_is_unreachable_for_a_while_ends_no_stopping(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Any] = [
        StoreError("unreachable"), ValueError("half a file"), [], StoreError("unreachable"),
        [Commit(5, Stop("asked for"))],
    ]  # fmt: skip

    class Control:
        def poll(self, train_step: int) -> list[Commit]:
            answer = answers.pop(0) if answers else []
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[no-any-return]

        def close(self) -> None:
            pass

    commits: list[Commit] = []
    made = recorder(Writer(), on_commit=commits.append, timing=QUICK)
    made.listen(Control())
    made.start()
    until(lambda: commits)
    made.close("finished", {})
    assert commits == [Commit(5, Stop("asked for"))]
    assert ["cannot check for stop requests" in message for message in caplog.messages] == [True, True]


def test_a_recorder_that_breaks_closes_its_files() -> None:
    class Breaking(Writer):
        def write(self, frames: list[bytes]) -> None:
            raise RuntimeError("injected")

    writer = Breaking()
    made = recorder(writer)
    made.start()
    made.put(step(0))
    assert made.close("finished", {})
    assert writer.closed


class NeverComes:
    """A number of a device that has failed."""

    def resolve(self) -> float:
        raise RuntimeError("device-side assert")


def test_a_step_that_cannot_be_encoded_is_lost_alone(caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer()
    made = recorder(writer)
    made.start()
    for first in (0, 3):
        for number in range(first, first + 3):
            whole = step(number)
            if number % 3 == 1:
                whole.records.rows[SCALARS] = [(LOSS, 1.0, NeverComes())]  # type: ignore[list-item]
            made.put(whole)
        made.urgent()
        until(lambda at=first: at + 2 in writer.raw)
    assert made.close("finished", {})
    tables = writer.tables()
    assert {row.name for row in tables.catalog} == {"loss", "w"}
    assert [holds(tables, number) for number in range(6)] == 2 * [EVERYTHING, set(), EVERYTHING]
    assert made.dropped["steps"] == 2
    (left,) = tables.lifecycle
    assert left["counters"]["dropped"]["steps"] == 2
    (warning,) = caplog.messages
    assert "1 of 3 steps cannot be recorded" in warning
    assert "device-side assert" in warning


class Failing(Opening):
    """Opens the writer once it has failed so many times."""

    def __init__(self, writer: Writer, failures: list[Exception]) -> None:
        super().__init__(lambda: writer)
        self.failures = failures

    def __call__(self) -> Writer:
        if self.failures:
            raise self.failures.pop(0)
        return super().__call__()


def test_a_store_that_is_unreachable_at_the_start_is_waited_for_and_what_fits_the_queue_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = Writer()
    opening = Failing(writer, [StoreError("unreachable")] * 5)
    quick = Timing(open_pauses_s=(0.001, 15.0))
    made = Recorder(opening, flush_interval_s=600.0, queue_bytes=1 << 20, timing=quick)
    for tensor in TENSORS:
        made.add_tensor(tensor)
    made.start()
    for number in range(10):
        made.put(step(number))
    while opening.failures:
        time.sleep(0.001)
    assert made.close("finished", {})
    assert [holds(writer.tables(), number) for number in range(10)] == [EVERYTHING] * 10
    assert [text for text in caplog.messages if "unreachable" in text] == [caplog.messages[0]]
    assert not opening.abandoned


@pytest.mark.parametrize("patience_s", [0.0, 0.3])
def test_a_store_that_never_comes_is_given_up_after_the_training(
    patience_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    opening = Failing(Writer(), [StoreError("unreachable")] * 10_000)
    opening.patience_s = patience_s
    made = Recorder(opening, flush_interval_s=600.0, queue_bytes=1 << 20, timing=Timing(silent_end_s=0.0))
    made.start()
    made.put(step(0))
    began = time.monotonic()
    assert made.close("finished", {}, timeout_s=PATIENCE_S)
    assert patience_s <= time.monotonic() - began
    messages = [text for text in caplog.messages if "run is over" in text]
    assert len(messages) <= 1
    assert messages or not patience_s
    assert made.dropped["steps"] == 1
    assert opening.abandoned == 1


def test_the_end_of_the_training_is_tried_at_once() -> None:
    """However long the pause is in which it comes."""
    writer = Writer()
    opening = Failing(writer, [StoreError("unreachable")])
    made = Recorder(opening, flush_interval_s=600.0, queue_bytes=1 << 20)
    made.start()
    made.put(step(0))
    while opening.failures:
        time.sleep(0.001)
    assert made.close("finished", {})
    assert holds(writer.tables(), 0) >= {"end"}


@pytest.mark.parametrize(
    "error", [RunExistsError("taken"), NotARunError("foreign"), RuntimeError("broken"), ForkedError("forked")]
)
def test_what_does_not_pass_by_waiting_ends_it_at_once(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    opening = Failing(Writer(), [error])
    opening.patience_s = 60.0
    made = Recorder(opening, flush_interval_s=600.0, queue_bytes=1 << 20)
    made.start()
    made.put(step(0))
    assert made.close("finished", {}, timeout_s=10.0)
    assert ["recording stopped" in text for text in caplog.messages] == [True]
    assert opening.abandoned == 1


def flushes(
    made: Recorder, writer: Counting, then: Callable[[], object] = int, *, least: int = 0, seconds: float = 0.0
) -> tuple[int, float]:
    """How often something is written, and in how many seconds, while ``then`` is done after each step.

    Steps come until so many seconds have passed and at least so many writes were seen.
    """
    made.start()
    began, number = time.monotonic(), 0
    while time.monotonic() - began < seconds or writer.writes < least:
        assert time.monotonic() - began < PATIENCE_S, f"{writer.writes} writes"
        made.put(step(number, raw=0))
        number += 1
        then()
        time.sleep(0.002)
    before = writer.writes
    passed_s = time.monotonic() - began  # read last: a pause in between brings no more writes
    made.close("finished", {})
    return before, passed_s


class Counting(Writer):
    """Counts its writes."""

    def __init__(self, **paces: float) -> None:
        super().__init__()
        self.writes = 0
        vars(self).update(paces)

    def write(self, frames: list[bytes]) -> None:
        self.writes += 1
        super().write(frames)


def opened(writer: Counting, queue_bytes: int = 1 << 24, flush_interval_s: float | None = None) -> Recorder:
    made = Recorder(Opening(lambda: writer), flush_interval_s=flush_interval_s, queue_bytes=queue_bytes)
    for tensor in TENSORS:
        made.add_tensor(tensor)
    return made


def test_the_writer_says_how_often_unless_the_caller_does() -> None:
    writer = Counting(flush_s=0.05)
    written, passed_s = flushes(opened(writer), writer, least=5, seconds=0.3)
    assert written <= passed_s / 0.05 + 2
    writer = Counting(flush_s=600.0)
    assert flushes(opened(writer), writer, seconds=0.2)[0] == 0
    writer = Counting(flush_s=600.0)
    flushes(opened(writer, flush_interval_s=0.05), writer, least=3)


def test_what_is_urgent_is_written_soon_and_not_more_often_than_the_store_stands() -> None:
    writer = Counting(flush_s=600.0, urgent_s=0.2)
    made = opened(writer)
    written, passed_s = flushes(made, writer, made.urgent, least=2, seconds=0.5)
    assert written <= passed_s / 0.2 + 2
    writer = Counting(flush_s=600.0, urgent_s=0.0)
    made = opened(writer)
    flushes(made, writer, made.urgent, least=10)


def test_what_fills_the_queue_is_written_before_its_time_so_that_nothing_is_dropped() -> None:
    writer = Counting(flush_s=600.0, urgent_s=600.0)
    made = opened(writer, queue_bytes=300 * sum(queued_bytes(step(0, raw=0).records)))
    # The training thread is slow enough: no other thread may write what fills the queue.
    flushes(made, writer, lambda: until(lambda: not made.pressure), least=2)
    assert not any(made.dropped.values())


def test_raw_tensors_that_find_no_room_are_counted() -> None:
    class Full(Writer):
        def write_tensors(self, tensors: list[tuple[int, RawTensor]]) -> list[dict[str, Any]]:
            raise NoRoomError("the spool is full")

    writer = Full()
    made = recorder(writer)
    for number in range(3):
        made.put(step(number, raw=2))
    made.start()
    assert made.close("finished", {})
    tables = writer.tables()
    assert [holds(tables, number) for number in range(3)] == [EVERYTHING - {"raw"}] * 3
    assert made.dropped["raw"] == 6
    (left,) = tables.lifecycle
    assert left["counters"]["dropped"]["raw"] == 6
    assert any("the spool is full" in str(fact.data) for number in range(3) for fact in tables.facts(number))


@pytest.mark.parametrize("patience_s", [0.0, 20.0])
def test_the_last_flush_is_tried_again_as_long_as_the_store_is_worth_it(patience_s: float) -> None:
    writer = Writer()
    writer.refuses, writer.patience_s, writer.closing_s = 3, patience_s, patience_s
    made = recorder(writer)
    made.put(step(0))
    made.start()
    assert made.close("finished", {})
    assert writer.closed
    if not patience_s:
        assert not writer.frames
        return
    assert holds(writer.tables(), 0) == EVERYTHING
    assert [event["event"] for event in writer.tables().lifecycle] == ["left"]
