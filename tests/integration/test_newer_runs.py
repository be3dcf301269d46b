"""Runs of later releases: minor versions are read, without what this one does not know; major ones are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fuzz.hostile import Part, frame, frames_of
from watchglass.cli import main
from watchglass.errors import FormatVersionError
from watchglass.evaluate import replay
from watchglass.records import Mode, Reduction
from watchglass.run import open_run
from watchglass.store import FrameKind, LocalStore, compact
from watchglass.testing import Step, build_run

LATER = {"later": [1, {"x": None}], "": "of a later release"}


def as_of(path: Path, major: int, minor: int) -> None:
    manifest = json.loads((path / "run.json").read_bytes())
    (path / "run.json").write_text(json.dumps({**manifest, **LATER, "format": [major, minor, 7]}))


def with_more_columns(payload: bytes) -> bytes:
    """A batch with unknown columns, in another order, and with integers that became wider."""
    with pa.ipc.open_stream(payload) as stream:
        table = stream.read_all()
    n = len(table)
    table = table.append_column("later", pa.array(["x"] * n)).append_column("nested", pa.array([[{"a": 1}]] * n))
    wider = table.schema.get_field_index("tensor_id")
    table = table.set_column(wider, "tensor_id", table.column(wider).cast(pa.int64()))
    table = table.select(table.column_names[::-1])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()


def of_a_later_minor(part: Part) -> list[bytes]:
    """A frame as 2.99 may write it, between frames that are new."""
    payload = part.payload
    if payload[:1] == b"{":
        payload = json.dumps({**json.loads(payload), **LATER}).encode()
    elif payload[:1] == b"[":
        payload = json.dumps([{**row, **LATER} for row in json.loads(payload)]).encode()
    elif part.kind == FrameKind.STATISTICS:
        payload = with_more_columns(payload)
    return [
        frame(Part(200, 1, b"of a kind that is new")),
        frame(part._replace(schema=2, payload=b"of a layout that is new")),
        frame(part._replace(payload=payload)),
    ]


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """A run with keys, columns, kinds, schemas and files that this release does not know."""
    steps = [
        Step(
            {"loss": 1.0 / (n + 1)}, {"fc1.weight": np.ones((2, 3)) * n}, {"fc1.output": [True, False]}, {"model": {}},
            {"fc1.weight": np.ones((2, 3), "f4")}, reductions={"fc1.weight": {Reduction.MEDIAN: float(n)}},
        )
        for n in range(6)
    ]  # fmt: skip
    path = Path(build_run(tmp_path / "run", steps, workers=2, steps_per_flush=2))
    as_of(path, 2, 99)
    for segment in path.glob("attempts/*/segments/*/*"):
        parts = [new for part in frames_of(segment.read_bytes()) for new in of_a_later_minor(part)]
        segment.write_bytes(b"".join(parts))
    for name in ("later.json", "later/x", "attempts/0000/later/x", "attempts/later", "control/later", "journal/later",
                 "attempts/0000/segments/later/worker_0-00000000", "compacted/later"):  # fmt: skip
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"of a later release")
    for claim in path.glob("attempts/*/workers/*"):
        claim.write_text(json.dumps({**json.loads(claim.read_bytes()), **LATER}))
    return path


def check_everything(path: Path) -> None:
    run = open_run(path)
    assert run.manifest.format == (2, 99)
    assert run.problems == []
    assert run.finished
    assert run.workers == ["worker_0", "worker_1"]
    assert list(run.steps()) == list(range(6))
    assert run.scalars("loss")[1].tolist() == [1 / (n + 1) for n in range(6)]
    tensor = run.tensor("fc1.weight")
    assert tensor.reductions("mean")[1].tolist() == [0, 1, 2, 3, 4, 5]
    assert tensor.reductions("median")[1].tolist() == [0, 1, 2, 3, 4, 5]
    assert tensor.histogram(3).counts.tolist() == [6]
    assert tensor.value(2).tolist() == [[1, 1, 1], [1, 1, 1]]
    assert [fact.kind for fact in run.facts()] == ["model"] * 6
    found = replay(path)
    assert (found.train_steps, found.ended, found.problems) == (6, True, ())


def test_a_later_minor_version_is_read(later: Path) -> None:
    check_everything(later)


def test_the_command_line_reads_it_too(later: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(later)]) == 0
    assert main(["check", str(later), "--rules", "LossNotDecreasing"]) == 0
    out = capsys.readouterr()
    assert "format    2.99" in out.out
    assert out.err == ""


def test_compacting_it_loses_nothing_that_this_release_does_not_know(later: Path) -> None:
    done = compact(LocalStore(later))
    assert done.kept
    assert list(later.glob("attempts/0000/segments/*/worker_0-*"))
    check_everything(later)


@pytest.mark.parametrize(
    ("major", "cure"), [(3, "upgrade watchglass"), (1, "read it with the watchglass that wrote it")]
)
def test_another_major_version_is_refused_with_the_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], major: int, cure: str
) -> None:
    path = Path(build_run(tmp_path / "run", [Step({"loss": 1.0}, mode=Mode.TRAIN)]))
    as_of(path, major, 0)
    with pytest.raises(FormatVersionError, match=rf"has format {major}\.0 but this watchglass reads format 2; {cure}"):
        open_run(path)
    target = ["-o", str(tmp_path / "x.html")]
    for command in (
        ["show"],
        ["check"],
        ["report", *target],
        ["trace", *target],
        ["compact"],
        ["export", "--to", "parquet", *target],
    ):
        assert main([command[0], str(path), *command[1:]]) == 2
        out = capsys.readouterr()
        (line,) = out.err.splitlines()
        assert line.startswith("watchglass: error: ")
        assert f"format {major}.0" in line
        assert cure in line
    assert not (tmp_path / "x").exists()
