"""``compact``, ``export`` and ``rm``: what they say, what they leave, and what they refuse."""

from __future__ import annotations

import json
import os
import re
import resource
from pathlib import Path

import numpy as np
import pytest

from command_line import Watchglass
from stores.compacted_runs import small_run
from stores.parquet_files import read_parquet
from watchglass.records import RAW, SCALARS, STATISTIC_FIELDS, STEPS, Mode, StepEnd
from watchglass.run import open_run
from watchglass.stats import Histograms
from watchglass.store import (
    FrameKind,
    JournalWriter,
    LocalStore,
    SegmentWriter,
    StatisticsBatch,
    compact,
    dtype_of,
    encode_frame,
    encode_rows,
    encode_statistics,
    encode_step_ends,
    pin,
    this_process,
)
from watchglass.testing import RunBuilder


def test_compact_says_what_it_did(watchglass: Watchglass, healthy: Path) -> None:
    said = watchglass("compact", healthy)
    assert (said.status, said.err) == (0, "")
    assert re.fullmatch(
        rf"""{healthy} compacted \(generation 1\)
before   \d+\.\d kB
after    \d+\.\d kB, of these \d+\.\d kB are \d+ rows of statistics, \d+\.\d bytes a row
deleted  1 object, \d+\.\d kB
""",
        said.out,
    )
    again = watchglass("compact", healthy)
    assert (again.status, again.out) == (0, f"{healthy} holds nothing new to compact\n")


def test_a_compacted_run_is_judged_the_same(watchglass: Watchglass, broken: Path) -> None:
    answers = [watchglass("check", broken, "--format", "json"), watchglass("show", broken, "--tensors")]
    assert watchglass("compact", broken).status == 0
    after = [watchglass("check", broken, "--format", "json"), watchglass("show", broken, "--tensors")]
    assert json.loads(after[0].out) == json.loads(answers[0].out)
    assert after == answers


def test_every_view_is_the_same_bits(watchglass: Watchglass, tmp_path: Path) -> None:
    small_run(tmp_path / "run", workers=2)
    before = everything(tmp_path / "run")
    assert watchglass("compact", tmp_path / "run").status == 0
    assert everything(tmp_path / "run") == before


def test_a_run_that_is_open_while_it_is_compacted_reads_on(watchglass: Watchglass, tmp_path: Path) -> None:
    small_run(tmp_path / "run", workers=1)
    run = open_run(tmp_path / "run")
    assert watchglass("compact", tmp_path / "run").status == 0
    steps, norms = run.tensor("gradient/fc.weight").reductions("l2")
    fresh = open_run(tmp_path / "run").tensor("gradient/fc.weight").reductions("l2")
    assert (steps.tolist(), norms.tolist()) == (fresh[0].tolist(), fresh[1].tolist())
    small_run(tmp_path / "run", workers=1)
    run.refresh()
    assert run.attempts == [0, 1]


def test_a_run_that_is_written_is_refused(watchglass: Watchglass, tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(scalars={"loss": 1.0})
        error = watchglass("compact", tmp_path / "run").error
        assert f"worker_0 is process {this_process().pid}, which is running; wait for it to end" in error


def test_what_is_kept_for_a_reader_is_reported(watchglass: Watchglass, healthy: Path) -> None:
    with pin(LocalStore(healthy)):
        said = watchglass("compact", healthy)
        assert said.status == 0
        assert f"process {this_process().pid} on" in said.err
        assert "reads them" in said.err
    assert "deleted  1 object" in watchglass("compact", healthy).out


def test_raw_tensors_are_removed_when_asked(watchglass: Watchglass, tmp_path: Path) -> None:
    small_run(tmp_path / "run", workers=1)
    assert "removed  0 files of raw tensors" in watchglass("compact", tmp_path / "run", "--keep-raw-days", "1").out
    said = watchglass("compact", tmp_path / "run", "--keep-raw-bytes", "0.1 kB")
    assert "removed  3 files of raw tensors" in said.out
    for words in (("--keep-raw-bytes", "many"), ("--keep-raw-days", "-1"), ("--keep-raw-days", "nan")):
        assert words[0] in watchglass("compact", tmp_path / "run", *words).error


def test_export_writes_tidy_tables(watchglass: Watchglass, tmp_path: Path) -> None:
    small_run(tmp_path / "run", workers=2)
    target = tmp_path / "out" / "tables"
    said = watchglass("export", tmp_path / "run", "--to", "parquet", "-o", target, "--histograms")
    assert (said.status, said.err) == (0, "")
    assert sorted(path.name for path in target.iterdir()) == [
        "facts.parquet", "findings.parquet", "functions.parquet", "loader_workers.parquet",
        "memory_categories.parquet", "module_operators.parquet", "notes.parquet", "operators.parquet",
        "pauses.parquet", "phases.parquet",
        "raw.parquet", "reductions.parquet", "samples.parquet", "scalars.parquet", "statistics.parquet",
        "steps.parquet", "tensors.parquet", "units.parquet",
    ]  # fmt: skip
    assert list(target.parent.iterdir()) == [target]
    statistics = read_parquet(target / "statistics.parquet").to_pylist()
    assert len(statistics) == 2 * 24 * 3
    run = open_run(tmp_path / "run")
    known = run.worker("worker_1").attempts[0]
    of_worker = [row for row in statistics if row["worker"] == "worker_1" and row["tensor"] == "gradient/fc.weight"]
    gradient = known.catalog.by_name("gradient/fc.weight")
    assert gradient is not None
    batch = known.statistics.read(tensor_ids=[gradient.tensor_id], histograms=True)
    assert batch.histograms is not None
    assert [row["global_step"] for row in of_worker] == batch.global_step.tolist()
    for name in STATISTIC_FIELDS:
        np.testing.assert_array_equal([row[name] for row in of_worker], batch.values[:, STATISTIC_FIELDS.index(name)])
    for index, row in enumerate(of_worker):
        assert row["histogram_counts"] == batch.histograms.row(index)[1].tolist()
        assert all(low < high for low, high in zip(row["histogram_low"], row["histogram_high"], strict=True))
        assert (row["role"], row["module"], row["module_type"], row["counts"]) == ("gradient", "fc", "Linear", True)
        assert (row["run"], row["attempt"], row["origin"]) == (run.manifest.run_id, 0, "planned")
        assert row["mean"] == row["sum"] / row["count"]
    steps = read_parquet(target / "steps.parquet").to_pylist()
    assert [row["step"] for row in steps if row["worker"] == "worker_0" and row["mode"] == "EVAL"] == [0, 1, 2]
    assert all(abs(row["seconds"] - 0.1) < 1e-9 for row in steps)
    facts = read_parquet(target / "facts.parquet").to_pylist()
    assert {(row["kind"], row["step"]) for row in facts if row["step"] is None} == {("model", None)}
    assert [json.loads(row["data"]) for row in facts if row["global_step"] == 4] == [{"size": 4}] * 2
    scalars = read_parquet(target / "scalars.parquet").to_pylist()
    assert [row["value"] for row in scalars if row["worker"] == "worker_0"] == [1 / (n + 1) for n in range(24)]


def test_steps_that_were_done_again_do_not_count(watchglass: Watchglass, tmp_path: Path) -> None:
    for _ in range(2):
        small_run(tmp_path / "run", workers=1, steps=6)
    assert watchglass("export", tmp_path / "run", "-o", tmp_path / "tables").status == 0
    steps = read_parquet(tmp_path / "tables/steps.parquet").to_pylist()
    assert [(row["attempt"], row["counts"]) for row in steps] == [(0, False)] * 6 + [(1, True)] * 6


def test_findings_are_exported(watchglass: Watchglass, tmp_path: Path, broken: Path) -> None:
    from watchglass.records import Finding, Mode, Severity
    from watchglass.store import JournalWriter

    finding = Finding(
        "abc", "Made", Severity.ERROR, 3, 5, 3, Mode.TRAIN, "worker_0", ("fc.weight",), float("nan"), None, "bad"
    )
    with JournalWriter(LocalStore(broken)) as journal:
        journal.write([finding])
    assert watchglass("export", broken, "-o", tmp_path / "tables").status == 0
    (row,) = read_parquet(tmp_path / "tables/findings.parquet").to_pylist()
    assert (row["rule"], row["severity"], row["tensors"], row["limit"]) == ("Made", "error", ["fc.weight"], None)
    assert np.isnan(row["value"])


def test_export_overwrites_nothing(watchglass: Watchglass, healthy: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    (tmp_path / "empty").mkdir()
    assert "is not an empty folder" in watchglass("export", healthy, "-o", tmp_path / "file").error
    assert "is not an empty folder" in watchglass("export", healthy, "-o", tmp_path / "full").error
    assert "an export is written to a folder" in watchglass("export", healthy, "-o", "s3://bucket/path").error
    assert "--to must be one of parquet" in watchglass("export", healthy, "-o", tmp_path / "x", "--to", "csv").error
    assert watchglass("export", healthy, "-o", tmp_path / "empty").status == 0
    assert (tmp_path / "full/file").read_text() == (tmp_path / "file").read_text() == "mine"


def test_an_export_that_fails_leaves_nothing(watchglass: Watchglass, healthy: Path, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # as on a full disk
    try:
        said = watchglass("export", healthy, "-o", tmp_path / "a/tables")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "File too large" in said.error
    assert list((tmp_path / "a").iterdir()) == []


def test_rm_removes_what_it_was_asked_to(watchglass: Watchglass, healthy: Path, broken: Path) -> None:
    (broken / "notes.txt").write_text("mine")
    assert "confirmation needs a terminal; use --yes" in watchglass("rm", healthy).error
    assert healthy.exists()
    said = watchglass("rm", healthy, broken, "--yes")
    assert said.status == 0
    assert said.out.startswith(f"{healthy} removed (")
    assert "kept 1 object not part of the run: notes.txt" in said.err
    assert not any(healthy.rglob("*")) if healthy.exists() else True
    assert [path.name for path in broken.iterdir()] == ["notes.txt"]


def test_rm_removes_nothing_where_one_of_several_is_no_run(
    watchglass: Watchglass, healthy: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("mine")
    assert "is not a run" in watchglass("rm", healthy, tmp_path / "mine", "--yes").error
    assert (healthy / "run.json").exists()


def test_rm_says_of_a_folder_of_runs_that_each_is_to_be_named(watchglass: Watchglass, healthy: Path) -> None:
    error = watchglass("rm", healthy.parent, "--yes").error
    assert f"{healthy.parent} is a folder of" in error
    assert "name each run to remove" in error
    assert (healthy / "run.json").exists()


@pytest.mark.parametrize(("answer", "removed"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_rm_asks_on_a_terminal(watchglass: Watchglass, healthy: Path, answer: str, removed: bool) -> None:
    said = watchglass("rm", healthy, typed=answer)
    assert said.status == (0 if removed else 130)
    assert (f"{healthy} was not removed" in said.err) is not removed
    assert re.search(rf"{healthy}: \d+\.\d kB in \d+ objects, 120 training steps. Remove it permanently\?", said.out)
    assert (healthy / "run.json").exists() is not removed


def test_a_run_in_use_is_not_removed(watchglass: Watchglass, tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(scalars={"loss": 1.0})
        error = watchglass("rm", tmp_path / "run", "--yes").error
        assert f"worker_0 writes it (process {this_process().pid}, which is running); stop it first" in error
    assert (tmp_path / "run/run.json").exists()


def everything(path: Path) -> list[object]:
    """What the Run API says of each tensor at each step, as bits."""
    run = open_run(path)
    found: list[object] = [run.problems]
    for name in run.workers:
        tables = run.worker(name).attempts[0]
        batch = tables.statistics.read(histograms=True)
        assert batch.histograms is not None
        found += [column.tobytes() for column in (batch.global_step, batch.tensor_id, batch.values, batch.calls)]
        found += [batch.histograms.keys.tobytes(), batch.histograms.counts.tobytes()]
        found.append(
            [(end, tables.rows(SCALARS, step), tables.rows(RAW, step)) for step, end in sorted(tables.steps.items())]
        )
        found.append([[column.tobytes() for column in tables.statistics.at(step)[:4]] for step in sorted(tables.steps)])
        found += [tables.facts(), tables.lifecycle, tables.headers]
        for info in tables.catalog.select():
            found += [column.tobytes() for column in tables.statistics.of_tensor(info.tensor_id)[:2]]
    return found


def test_export_of_a_run_with_impossible_numbers(watchglass: Watchglass, tmp_path: Path) -> None:
    """Rows that no table can hold are skipped and reported; the command goes on."""
    store = small_run(tmp_path / "run", workers=1, steps=3)
    much = 1 << 80
    header = {"format": [2, 0], "attempt": 0, "worker": "worker_0", "seq": 1, "wall_ns": much, "monotonic_ns": -much}
    row = {"tensor_id": 77, "name": "x", "role": "custom", "shape": [], "dtype": "float32", "layer_index": much}
    ends = np.zeros(1, dtype_of(STEPS))
    ends["global_step"], ends["mode"], ends["end_ns"] = 9, 1, (1 << 64) - 1
    finding = {
        "id": "a", "rule": "LossNotDecreasing", "severity": "warning", "step": much, "last_step": much, "count": 1,
        "mode": "TRAIN", "worker": "worker_0", "tensors": [], "value": 1.0, "limit": 1.0, "message": "m", "causes": [],
        "try": [], "attempt": 0, "global_step": much, "evidence": {},
    }  # fmt: skip
    SegmentWriter(store, 0, "worker_0").write(
        [
            encode_frame(FrameKind.HEADER, json.dumps(header).encode()),
            encode_frame(FrameKind.CATALOG, json.dumps([row]).encode()),
            encode_frame(FrameKind.STEP_ENDS, ends.tobytes()),
        ]
    )
    with JournalWriter(store) as journal:
        journal.write([encode_frame(FrameKind.FINDING, json.dumps(finding).encode())])
    said = watchglass("export", tmp_path / "run", "-o", tmp_path / "tables", "--histograms")
    assert said.status == 0, said.err
    assert "catalog row is malformed" in said.err
    assert "finding is malformed" in said.err
    assert len(read_parquet(tmp_path / "tables/steps.parquet")) == 4


def test_scalars_of_very_late_steps_are_exported_at_their_step(watchglass: Watchglass, tmp_path: Path) -> None:
    """Steps beyond 2**53 are no exact float64."""
    store = small_run(tmp_path / "run", workers=1, steps=3)
    late = (1 << 60) + 129
    scalars = np.zeros(1, dtype_of(SCALARS))
    scalars["global_step"], scalars["tensor_id"], scalars["value"] = late, 1, 7.0
    end = StepEnd(late, Mode.TRAIN, 5, 5, 0, 1)
    SegmentWriter(store, 0, "worker_0").write([encode_rows(SCALARS, scalars), encode_step_ends([end])])
    assert watchglass("export", tmp_path / "run", "-o", tmp_path / "tables").status == 0
    rows = read_parquet(tmp_path / "tables/scalars.parquet").to_pylist()
    assert [row["value"] for row in rows if row["global_step"] == late] == [7.0]


def test_export_beside_what_a_killed_export_left(watchglass: Watchglass, tmp_path: Path) -> None:
    """In a container the next process may have the same number."""
    small_run(tmp_path / "run", workers=1, steps=3)
    (tmp_path / f".tables.watchglass-{os.getpid()}").mkdir()
    assert watchglass("export", tmp_path / "run", "-o", tmp_path / "tables").status == 0


@pytest.mark.parametrize("compacted", [False, True])
def test_export_refuses_histograms_of_impossibly_many_elements(
    watchglass: Watchglass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compacted: bool
) -> None:
    store = small_run(tmp_path / "run", workers=1, steps=3)
    histograms = Histograms.none(1)
    histograms.seen[:] = (1 << 64) - 1
    row = StatisticsBatch(
        np.zeros(1, np.uint64), np.ones(1, np.uint32), np.ones(1, np.uint32),
        np.zeros((1, len(STATISTIC_FIELDS))), np.zeros(1, np.uint8), np.zeros(1, bool), histograms,
    )  # fmt: skip
    SegmentWriter(store, 0, "worker_0").write([encode_statistics(row)])
    if compacted:
        with monkeypatch.context() as patched:
            patched.setattr("watchglass.store.encoding.histogram_columns._check", lambda *_: None)
            patched.setattr("watchglass.store.compaction.segment_compactor._check_statistics", lambda *_: None)
            assert compact(store).written
    said = watchglass("export", tmp_path / "run", "-o", tmp_path / "tables", "--histograms")
    assert said.status == 0, said.err
    assert "impossible" in said.err
