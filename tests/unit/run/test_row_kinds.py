"""A kind of rows that is declared is written, read, compacted, queried and exported; nothing else names it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from stores.parquet_files import read_parquet
from watchglass.errors import InvalidValueError
from watchglass.evaluate import replay
from watchglass.records import (
    FACTS,
    FINDINGS,
    ROW_KINDS,
    STEPS,
    TENSORS,
    Encoding,
    Fact,
    Field,
    Finding,
    Mode,
    Role,
    RowKey,
    RowKind,
    Severity,
    StepEnd,
    TensorInfo,
    of_steps,
)
from watchglass.run import Run, open_run
from watchglass.store import FrameKind, LocalStore, RunReader, compact
from watchglass.testing import RunBuilder, Step
from watchglass.view import export_parquet

SKETCHES = RowKind(
    "sketches", 90, (Field("tensor_id", "u32"), Field("rank", "u16"), Field("error", "f64")), unique=("tensor_id",)
)
LOADS = RowKind(
    "loads", 91, (Field("host", "text"), Field("cores", "f32", unit="percent", array=True)), RowKey.TIME
)  # fmt: skip


@pytest.fixture(params=[False, True], ids=["live", "compacted"])
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    for kind in (SKETCHES, LOADS):
        monkeypatch.setitem(ROW_KINDS, kind.number, kind)
    with RunBuilder(tmp_path / "run") as builder:
        builder.add(LOADS, [(500_000_000, "a", [1.0, 2.5]), (700_000_000, "b", [])])  # before the first step
        for n in range(4):
            rows = [(0, n, n / 2), (0, n + 1, n / 4)]  # of one tensor and step the last one counts
            builder.step(Step({"loss": 1.0 / (n + 1)}, rows={SKETCHES: rows}))
        builder.leave()
    if request.param:
        assert compact(LocalStore(tmp_path / "run")).written
        kinds = [frame.kind for *_, frame in RunReader(LocalStore(tmp_path / "run")).poll()]
        assert kinds.count(SKETCHES.number) == kinds.count(FrameKind.SCALARS) == 1  # joined
    return tmp_path / "run"


EXPECTED = [(n, "loss", n + 1, n / 4) for n in range(4)]


def test_a_new_kind_is_read_by_worker_and_by_sql(path: Path) -> None:
    run = open_run(path)
    assert run.problems == []
    assert run.worker().tables.columns(SKETCHES)["rank"].tolist() == [1, 2, 3, 4]
    found = run.sql("select step, tensor, rank, error from sketches order by step").to_arrow()
    assert [tuple(row.values()) for row in found.to_pylist()] == EXPECTED
    loads = run.table("loads").to_arrow().select(["worker", "host", "cores"]).to_pylist()
    assert loads == [
        {"worker": "worker_0", "host": "a", "cores": [1.0, 2.5]}, {"worker": "worker_0", "host": "b", "cores": []},
    ]  # fmt: skip


def test_a_new_kind_is_exported(path: Path, tmp_path: Path) -> None:
    export_parquet(open_run(path), str(tmp_path / "out"))
    rows = read_parquet(tmp_path / "out/sketches.parquet").to_pylist()
    assert [(row["step"], row["tensor"], row["rank"], row["error"]) for row in rows] == EXPECTED
    assert [row["host"] for row in read_parquet(tmp_path / "out/loads.parquet").to_pylist()] == ["a", "b"]


def test_rows_by_time_hold_no_step_back(path: Path) -> None:
    assert replay(path).train_steps == 4
    assert SKETCHES in of_steps()
    assert LOADS not in of_steps()


def test_sql_and_export_have_the_same_columns(path: Path, tmp_path: Path) -> None:
    run: Run = open_run(path)
    export_parquet(run, str(tmp_path / "out"))
    for kind in ROW_KINDS.values():
        exported = pq.read_schema(tmp_path / f"out/{kind.name}.parquet").names
        assert [name for name in exported if name not in ("run", "counts", "origin")] == run.table(kind.name).columns


def test_only_rows_of_wanted_steps_are_kept(path: Path) -> None:
    tables = open_run(path, steps=(1, 3)).worker().tables
    assert np.unique(tables.columns(SKETCHES)["global_step"]).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        (TENSORS, TensorInfo(0, "w", Role.WEIGHT)),
        (FACTS, Fact("k", 0, "s")),
        (FINDINGS, Finding("", "", Severity.INFO, 0, 0, 1, Mode.TRAIN, "worker_0", (), None, None, "")),
        (STEPS, StepEnd(0, Mode.TRAIN, 0, 0, 0, 0)),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_a_kind_that_is_a_record_declares_all_of_its_fields(kind: RowKind, record: Any) -> None:
    fields = record.to_json() if hasattr(record, "to_json") else asdict(record)
    assert {field.name for field in kind.fields} == set(fields)


def test_numbers_and_names_of_kinds_are_used_once() -> None:
    assert len({kind.name for kind in ROW_KINDS.values()}) == len(ROW_KINDS)
    assert all(number == kind.number for number, kind in ROW_KINDS.items())


@pytest.mark.parametrize("field", [Field("tags", "text", array=True), Field("tags", "json")], ids=["texts", "json"])
def test_a_field_that_only_json_can_hold_is_refused_in_other_kinds(field: Field) -> None:
    with pytest.raises(InvalidValueError, match=r"'notes' has Field\(name='tags', type=.*declare a plain text field"):
        RowKind("notes", 92, (Field("host", "text"), field))
    assert RowKind("notes", 92, (Field("host", "text"), field), special=Encoding.JSON).own[1] is field
