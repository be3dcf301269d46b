"""A stream: rows keyed by time from a writer that is no worker. Written in batches, read as tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stores.faulty_store import FaultyStore
from stores.parquet_files import read_parquet
from watchglass.errors import InvalidValueError, RunExistsError, StoreError
from watchglass.evaluate import replay
from watchglass.records import ROW_KINDS, Field, RowKey, RowKind
from watchglass.run import Run, open_run
from watchglass.store import (
    Frame,
    FrameKind,
    LocalStore,
    RunReader,
    StreamWriter,
    check_idle,
    compact,
    create_attempt,
    create_run,
    encode_frame,
    encode_header,
    layout,
    plan_removal,
    remove,
)
from watchglass.testing import RunBuilder
from watchglass.view import export_parquet

SECOND = 1_000_000_000
#: The declaration is all that a new kind of rows takes.
SAMPLES = RowKind(
    "readings", 92,
    (Field("metric", "text"), Field("values", "f32", "one for each core", "percent", array=True)), RowKey.TIME,
)  # fmt: skip


class Clock:
    """Begins at second 100, by wall time at second 1,000,100."""

    seconds = 100.0

    def monotonic_ns(self) -> int:
        return int(self.seconds * SECOND)

    def time_ns(self) -> int:
        return self.monotonic_ns() + 1_000_000 * SECOND


class ObjectStore(LocalStore):
    """A folder that cannot append, like an object store."""

    appends = False


class Refusing(LocalStore):
    """Takes what comes but says that it failed, or takes half of it."""

    takes: float | None = None

    def append(self, path: str, data: bytes) -> None:
        if self.takes is not None:
            super().append(path, data[: int(len(data) * self.takes)])
            raise StoreError("the disk is full")
        super().append(path, data)


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROW_KINDS, SAMPLES.number, SAMPLES)


@pytest.fixture(params=[LocalStore, ObjectStore])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LocalStore:
    return begun(request.param(tmp_path / "run"))


def begun(store: LocalStore) -> LocalStore:
    create_run(store, command=["train.py"])
    create_attempt(store, "")
    return store


def sample(second: float, value: float = 0.0) -> tuple[int, str, list[float]]:
    return int(second * SECOND), "cpu", [value, value + 1]


def rows_of(run: Run) -> list[tuple[float, float]]:
    """Seconds since the run's clock began, and the first value."""
    rows = run.table("readings").to_arrow().to_pylist()
    return [(row["time"].timestamp() - 1_000_000, row["values"][0]) for row in rows]


def test_a_stream_before_the_first_step_is_read_as_it_grows(store: LocalStore) -> None:
    clock = Clock()
    with StreamWriter(store, 0, "system", clock=clock) as writer:
        writer.write({SAMPLES: [sample(99, 1), sample(99.5, 2)]})
        run = open_run(str(store.root))
        assert (run.workers, run.streams, run.problems) == ([], ["system"], [])
        assert rows_of(run) == [(99, 1), (99.5, 2)]
        clock.seconds = 200  # the next segment, also in a folder
        writer.write({SAMPLES: [sample(150, 3)]})
        assert run.refresh()
    assert rows_of(run) == rows_of(open_run(str(store.root))) == [(99, 1), (99.5, 2), (150, 3)]
    assert not run.refresh()


def test_a_stream_holds_no_step_back_and_is_in_sql_table_and_export(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunBuilder(path) as builder, StreamWriter(builder.store, builder.attempt, "system", clock=Clock()) as stream:
        stream.write({SAMPLES: [sample(1, 7)]})
        for n in range(4):
            builder.step({"scalars": {"loss": 1.0 / (n + 1)}})
        builder.add(SAMPLES, [sample(2, 8)])  # a worker may write them too
        builder.flush()
        assert len(open_run(path).steps()) == 4  # the stream lives, and is behind
        builder.leave()
    assert replay(path).train_steps == 4
    run = open_run(path)
    assert (run.workers, run.finished) == (["worker_0"], True)
    expected = [("worker_0", None, "cpu", [8, 9]), (None, "system", "cpu", [7, 8])]
    for found in (
        run.sql("select * from readings order by worker nulls last").to_arrow(), run.table("readings").to_arrow(),
    ):  # fmt: skip
        rows = found.select(["worker", "stream", "metric", "values"]).to_pylist()
        assert [tuple(row.values()) for row in rows] == expected
    export_parquet(run, str(tmp_path / "out"))
    rows = read_parquet(tmp_path / "out/readings.parquet").to_pylist()
    assert [(row["worker"], row["stream"], row["metric"], row["values"]) for row in rows] == expected


def test_a_torn_tail_is_read_once_it_is_whole(tmp_path: Path) -> None:
    store = begun(LocalStore(tmp_path / "run"))
    with StreamWriter(store, 0, "system", clock=Clock()) as writer:
        writer.write({SAMPLES: [sample(98, 1)]})
        segment = tmp_path / "run/streams/system/00000000"
        size = segment.stat().st_size
        writer.write({SAMPLES: [sample(100, 2)]}, 101 * SECOND)
    whole = segment.read_bytes()
    for cut in range(size, len(whole)):
        segment.write_bytes(whole[:cut])
        run = open_run(tmp_path / "run")
        assert rows_of(run) == [(98, 1)]
    assert "ends within a frame" in str(run.reading.unfinished()[0])
    segment.write_bytes(whole)
    run.refresh()
    assert rows_of(run) == [(98, 1), (100, 2)]
    assert run.reading.streams.parts["system"][0].watermark_ns == 101 * SECOND


@pytest.mark.parametrize("takes", [0, 0.5, 0.8, 1])
def test_a_batch_that_was_refused_is_written_with_the_next_and_counts_once(tmp_path: Path, takes: float) -> None:
    store = Refusing(tmp_path / "run")
    begun(store)
    with StreamWriter(store, 0, "system", clock=Clock()) as writer:
        writer.write({SAMPLES: [sample(98, 1)]}, 99 * SECOND)
        store.takes = takes
        with pytest.raises(StoreError):
            writer.write({SAMPLES: [sample(99, 2)]}, 100 * SECOND)
        store.takes = None
        writer.write({SAMPLES: [sample(100, 3)]}, 101 * SECOND)
    assert rows_of(open_run(tmp_path / "run")) == [(98, 1), (99, 2), (100, 3)]


def test_what_an_unreachable_store_did_not_take_is_written_as_the_writer_closes(store: LocalStore) -> None:
    faulty = FaultyStore(store)
    with StreamWriter(faulty, 0, "system", clock=Clock()) as writer:
        faulty.unreachable = True
        for second in (98, 99):
            with pytest.raises(StoreError):
                writer.write({SAMPLES: [sample(second)]}, (second + 1) * SECOND)
        faulty.unreachable = False
    assert (rows_of(open_run(str(store.root))), writer.lost) == ([(98, 0), (99, 0)], 0)


def test_a_stream_says_what_its_writer_lost(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = FaultyStore(store)
    with StreamWriter(faulty, 0, "system", clock=Clock(), most_waiting_bytes=0) as writer:
        writer.write({SAMPLES: [sample(90)]}, 91 * SECOND)
        faulty.unreachable = True
        for second in (95, 96, 97):
            with pytest.raises(StoreError):
                writer.write({SAMPLES: [sample(second)]}, (second + 1) * SECOND)
        faulty.unreachable = False
        writer.write({SAMPLES: [sample(98)]}, 99 * SECOND)
        run = open_run(str(store.root))
        assert [second for second, _ in rows_of(run)] == [90, 98]
        assert [str(problem) for problem in run.problems] == [
            "streams/system at byte 0: 3 batches of rows were lost by its writer"
        ]
        faulty.unreachable = True
        with pytest.raises(StoreError):
            writer.write({SAMPLES: [sample(99)]}, 100 * SECOND)
    assert writer.lost == 4, "what waited as the writer was closed is lost, too"
    assert [record.getMessage() for record in caplog.records if "loses rows" in record.getMessage()] == [
        f"watchglass: stream system loses rows: {store.location} has refused them for too long"
    ]


class RefusesOnce(LocalStore):
    """Refuses to read one object, once."""

    refuses = ""

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        if path == self.refuses:
            self.refuses = ""
            raise StoreError("try again")
        return super().read(path, start, end)


def test_what_was_read_of_streams_counts_also_where_the_store_then_refuses(tmp_path: Path) -> None:
    store = begun(RefusesOnce(tmp_path / "run"))
    for name in ("disk", "system"):
        with StreamWriter(store, 0, name, clock=Clock()) as writer:
            writer.write({SAMPLES: [sample(98, 1)]})
    store.refuses = "streams/system/00000000"
    reader, read = RunReader(store), list[tuple[str, Frame]]()
    with pytest.raises(StoreError, match="try again"):
        read.extend(reader.streams())  # keeps what came before the error
    assert {name for name, _ in read} == {"disk"}
    read += reader.streams()
    assert [name for name, _ in read] == ["disk"] * 3 + ["system"] * 3


def test_a_stream_has_one_writer_and_batches_are_in_order(store: LocalStore) -> None:
    with StreamWriter(store, 0, "system", clock=Clock()) as writer:
        with pytest.raises(RunExistsError, match=r"stream system of .* is held by process"):
            StreamWriter(store, 0, "system")
        writer.write({SAMPLES: [sample(98)]}, 99 * SECOND)
        for rows, until_s in (([sample(98)], 100), ([sample(101)], 100), ([], 99)):
            with pytest.raises(InvalidValueError, match="where the one before ended"):
                writer.write({SAMPLES: rows}, until_s * SECOND)
    with pytest.raises(InvalidValueError, match="must look like 'system'"):
        StreamWriter(store, 0, "../system")


def test_the_next_process_and_the_next_attempt_go_on(store: LocalStore) -> None:
    create_attempt(store, "again")
    for attempt, second in ((0, 100.0), (0, 110.0), (1, 50.0)):  # the machine was started again before the last
        clock = Clock()
        clock.seconds = second
        with StreamWriter(store, attempt, "system", clock=clock) as writer:
            writer.write({SAMPLES: [sample(second - 1, second)]})
    run = open_run(str(store.root))
    assert rows_of(run) == [(99, 100), (109, 110), (49, 50)]
    assert run.table("readings").to_arrow()["attempt"].to_pylist() == [0, 0, 1]
    assert rows_of(open_run(str(store.root), attempt=1)) == [(49, 50)]


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[tuple[Path, StreamWriter]]:
    """A run of a worker that has ended, with a stream that still writes."""
    builder = RunBuilder(tmp_path / "run")
    with builder, StreamWriter(builder.store, builder.attempt, "system", clock=Clock()) as stream:
        stream.write({SAMPLES: [sample(1, 7)]})
        builder.step({"scalars": {"loss": 1.0}})
        builder.leave()
        yield tmp_path / "run", stream


def test_compaction_leaves_streams_as_they_are(beside: tuple[Path, StreamWriter]) -> None:
    path, stream = beside
    assert compact(LocalStore(path)).written
    assert {worker for _, worker, _ in RunReader(LocalStore(path)).poll()} == {"worker_0"}
    stream.write({SAMPLES: [sample(200, 8)]})
    assert [value for _, value in rows_of(open_run(path))] == [7, 8]


def test_a_run_is_removed_with_its_streams_once_their_writers_have_ended(beside: tuple[Path, StreamWriter]) -> None:
    path, stream = beside
    store = LocalStore(path)
    with pytest.raises(RunExistsError, match="writes stream system of it"):
        check_idle(store)
    stream.close()
    check_idle(store)
    plan = plan_removal(store)
    assert plan.foreign == ()
    assert layout.stream_claim("system") in plan.paths
    remove(store, plan)
    assert list(path.glob("**/*")) == []


def test_nonsense_in_a_stream_is_a_problem_and_the_rest_is_read(tmp_path: Path) -> None:
    store = begun(LocalStore(tmp_path / "run"))
    with StreamWriter(store, 0, "system", clock=Clock()) as writer:
        writer.write({SAMPLES: [sample(1, 7)]})
    nonsense = [encode_header({"attempt": "9"}), *(encode_frame(kind, b"[") for kind in (FrameKind.WATERMARK, 92))]
    segments = [each for each in store.list(layout.stream("system")) if "claim" not in each.path]
    store.append(segments[-1].path, b"".join(nonsense))
    with StreamWriter(store, 0, "system", clock=Clock()) as writer:
        writer.write({SAMPLES: [sample(150, 8)]})
    run = open_run(tmp_path / "run")
    assert [value for _, value in rows_of(run)] == [7, 8]
    assert len(run.problems) == 2
