"""Samples of a run: by name and time, over attempts and machines, in SQL, and in few words."""

from __future__ import annotations

import warnings
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest

from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.records import SAMPLES
from watchglass.run import open_run, usage_of
from watchglass.run.samples import long_form
from watchglass.store import FrameKind, LocalStore, encode_frame, layout, table_of
from watchglass.tables import metrics_in, series_of
from watchglass.testing import Batch, RunBuilder, Step, build_run
from watchglass.view import usage_sentence

GIB = 1 << 30
SOUND = '[["cpu.utilization", "%"]]'


@pytest.fixture
def path(tmp_path: Path) -> str:
    batches = [
        Batch(metrics={"cpu.utilization": [10.0 * n + part for part in range(10)],
                       "cpu.core.utilization": [[part, 100 - part] for part in range(10)]}, seconds=10)
        for n in range(6)
    ]  # fmt: skip
    return build_run(tmp_path / "run", [*batches, Step({"loss": 1.0})])


def test_a_metric_is_a_course_with_a_column_for_each_instance(path: str) -> None:
    run = open_run(path)
    cpu, cores = run.samples("cpu.utilization"), run.samples("cpu.core.utilization")
    assert cpu.values.tolist() == list(range(60))
    assert (cpu.instances, cores.instances, cores.values.shape) == ((), ("0", "1"), (60, 2))
    assert np.diff(cpu.time_ns).tolist() == [1_000_000_000] * 59
    assert (np.diff(cpu.time) == np.timedelta64(1, "s")).all()
    frame = cores.to_pandas()
    assert list(frame.columns) == ["0", "1"]
    assert str(frame.index.tz) == "UTC"
    assert repr(cores) == "Samples('cpu.core.utilization': 60 times of 2 instances, a number, stream 'system')"


def test_a_page_is_half_open_by_either_clock(path: str) -> None:
    run = open_run(path)
    whole = run.samples("cpu.utilization")
    by_wall = run.samples("cpu.utilization", start=whole.time[15], stop=whole.time[25])
    by_clock = run.samples("cpu.utilization", start=int(whole.time_ns[15]), stop=int(whole.time_ns[25]))
    assert by_wall.values.tolist() == by_clock.values.tolist() == list(range(15, 25))
    moment = datetime.fromtimestamp(whole.time[15].astype(int) / 1e9, timezone.utc)
    zone = timezone(timedelta(hours=2))
    found = run.samples("cpu.utilization", start=(moment - timedelta(seconds=0.5)).astimezone(zone))
    assert found.values[0] == 15
    with pytest.raises(InvalidValueError, match="must have a time zone"):
        run.samples("cpu.utilization", start=datetime(2026, 1, 1))
    with pytest.raises(UnknownNameError, match=r"no samples of 'cpu.utilization' in that time"):
        run.samples("cpu.utilization", stop=5)


def test_only_the_frames_of_a_page_are_decoded(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(path)
    whole, decoded = run.samples("cpu.utilization"), list[int]()
    from watchglass.tables import samples

    decode = samples.decode_rows
    monkeypatch.setattr(samples, "decode_rows", lambda *given: decoded.append(1) or decode(*given))
    run.samples("cpu.utilization", start=int(whole.time_ns[12]), stop=int(whole.time_ns[18]))
    assert len(decoded) == 1


def test_unknown_names_are_errors_with_the_nearest_one(path: str) -> None:
    run = open_run(path)
    with pytest.raises(UnknownNameError, match=r"did you mean \"cpu.utilization\"\?\); run.samples\(\) lists"):
        run.samples("cpu.utilisation")
    with pytest.raises(UnknownNameError, match="no stream 'disk'; it has system"):
        run.samples("cpu.utilization", stream="disk")


def test_the_overview_names_all_metrics(path: str) -> None:
    run = open_run(path)
    rows = {row["metric"]: row for row in run.samples().to_arrow().to_pylist()}
    assert list(rows) == ["cpu.utilization", "cpu.core.utilization"]
    assert (rows["cpu.utilization"]["mean"], rows["cpu.utilization"]["max"]) == (29.5, 59)
    assert (rows["cpu.core.utilization"]["instances"], rows["cpu.core.utilization"]["times"]) == (2, 60)


def test_sql_has_a_row_for_each_number(path: str) -> None:
    run = open_run(path)
    query = "select instance, count(*) n, avg(value) mean from samples where metric = 'cpu.core.utilization' group by 1"
    rows = run.sql(f"{query} order by 1").to_arrow().to_pylist()
    assert [(row["instance"], row["n"], row["mean"]) for row in rows] == [("0", 60, 4.5), ("1", 60, 95.5)]
    table = run.table("samples").to_arrow()
    assert set(table["stream"].to_pylist()) == {"system"}
    assert table.column_names == ["attempt", "worker", "stream", "time", "metric", "instance", "unit", "value"]


def test_samples_of_all_attempts_count_and_of_one_alone(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        with RunBuilder(tmp_path / "run") as builder:
            builder.batch(Batch(metrics={"cpu.utilization": [value]}))
            builder.step(scalars={"loss": 1.0})
            builder.leave()
    assert open_run(tmp_path / "run").samples("cpu.utilization").values.tolist() == [1, 2]
    assert open_run(tmp_path / "run", attempt=1).samples("cpu.utilization").values.tolist() == [2]


def test_a_run_that_goes_on_shows_more_and_a_snapshot_does_not(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        builder.batch(Batch(metrics={"cpu.utilization": [1.0]}))
        run = open_run(tmp_path / "run")
        snapshot = run.snapshot()
        builder.batch(Batch(metrics={"cpu.utilization": [2.0]}))
        assert run.refresh()
        assert run.samples("cpu.utilization").values.tolist() == [1, 2]
        assert snapshot.samples("cpu.utilization").values.tolist() == [1]


def test_samples_that_are_read_while_more_are_written_are_whole(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        builder.batch(Batch(metrics={"cpu.utilization": [0.0] * 5}))
        run = open_run(tmp_path / "run")
        for number in range(1, 5):  # each is read once in the segment as it is, and once as it has grown
            assert len(run.samples("cpu.utilization")) == 5 * number
            builder.batch(Batch(metrics={"cpu.utilization": [1.0 * number] * 5}))
            run.refresh()
        assert run.problems == []
        assert run.snapshot().samples("cpu.utilization").values[-1] == 4.0


def test_the_usage_of_a_machine_is_in_few_words(tmp_path: Path) -> None:
    metrics = {
        "cpu.utilization": [40.0, 60.0], "processes.memory": [float("nan"), 3.0 * GIB],
        "gpu.utilization": [[80.0, 0.0], [90.0, 0.0]], "gpu.processes": [[1, 0], [float("nan"), float("nan")]],
    }  # fmt: skip
    (usage,) = usage_of(open_run(build_run(tmp_path / "run", [Batch(metrics=metrics)])))
    assert usage_sentence(usage) == (
        "processor 50 % on average, 95th percentile 59 %; processes of the run at most 3.2 GB; 1 GPU 85 % on average"
    )
    assert usage_of(open_run(build_run(tmp_path / "none", [Step({"loss": 1.0})]))) == []


def test_samples_that_are_no_numbers_do_not_count_in_the_usage(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    metrics = {
        "cpu.utilization": [[nan, 40.0], [inf, -inf], [60.0, 60.0]], "processes.memory": [inf, nan, 3.0 * GIB],
        "gpu.utilization": [[80.0, inf, 5.0], [-inf, 90.0, 5.0], [nan, inf, 5.0]],
        "gpu.processes": [[1, 1, nan], [nan, 2, nan], [inf, nan, nan]],
    }  # fmt: skip
    (usage,) = usage_of(open_run(build_run(tmp_path / "run", [Batch(metrics=metrics)])))
    assert usage_sentence(usage) == (
        "processor 50 % on average, 95th percentile 59 %; processes of the run at most 3.2 GB; 2 GPUs 85 % on average"
    )
    unknown = {name: [[inf] * 3] * 2 for name in metrics}
    (usage,) = usage_of(open_run(build_run(tmp_path / "unknown", [Batch(metrics=unknown)])))
    assert usage_sentence(usage) == "no samples of processor and memory"


def test_layouts_that_are_none_and_rows_of_another_length_are_left_out(tmp_path: Path) -> None:
    rows = [
        (0.0, '[["cpu.utilization","%"]]', [1.0]), (1.0, "nonsense", [2.0]), (2.0, '[["cpu.utilization","%"]]', [3, 4]),
        (3.0, '{"a": 1}', [5.0]), (4.0, '[["cpu.utilization","%"]]', [6.0]), (5.0, '[["x","%",7]]', [6.0]),
    ]  # fmt: skip
    run = open_run(build_run(tmp_path / "run", [Batch({SAMPLES: rows})]))
    assert run.samples("cpu.utilization").values.tolist() == [1, 6]
    assert run.table("samples").to_arrow()["value"].to_pylist() == [1, 6]


def test_a_damaged_frame_is_a_problem_once_it_is_read(tmp_path: Path) -> None:
    path = build_run(tmp_path / "run", [Batch(metrics={"cpu.utilization": [1.0]})])
    store = LocalStore(path)
    (segment,) = [each for each in store.list(layout.stream("system")) if "claim" not in each.path]
    until = b'{"time_ns":9000000000000000000}'
    store.append(segment.path, encode_frame(FrameKind.SAMPLES, b"[") + encode_frame(FrameKind.WATERMARK, until))
    run = open_run(path)
    assert run.samples("cpu.utilization").values.tolist() == [1]
    assert len(run.problems) == 1


@pytest.mark.parametrize(
    "layout",
    [
        '[["a", "%"], ["b", "%"], ["a", "%"]]',
        "[" * 100_000,
        '[["a"]]',
        "7",
        '[["a", "%"], ["b", "%"]' + " " * (1 << 18) + "]",
    ],
)
def test_samples_whose_layout_makes_no_sense_are_left_out(layout: str) -> None:
    rows = table_of(SAMPLES, [(1, layout, np.zeros(2, "f4")), (2, SOUND, np.ones(1, "f4"))])
    assert list(metrics_in(rows)) == ["cpu.utilization"]
    assert series_of(rows, "cpu.utilization").values.tolist() == [[1.0]]
    assert [column[0] for column in long_form(rows)] == [2, "cpu.utilization", "", "%", 1.0]


def test_no_number_makes_reading_warn() -> None:
    signalling = np.frombuffer(b"\x01\x00\x80\x7f", "<f4")
    rows = table_of(
        SAMPLES, [(1, SOUND, signalling), (2, SOUND, np.array([np.inf], "f4")), (3, SOUND, np.ones(1, "f4"))]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        series = series_of(rows, "cpu.utilization")
        assert series.time_ns.tolist() == [2, 3]
        assert np.array_equal(series.mean_of_instances, [np.nan, 1.0], equal_nan=True)
        assert long_form(rows)[4].tolist() == [np.inf, 1.0]
