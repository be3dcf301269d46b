"""A run that cannot be read, for whatever reason, hides no healthy run beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from command_line import Watchglass, training
from fuzz.hostile import Part, frame, frames_of
from watchglass.errors import StoreError
from watchglass.run import RunSearch, open_run, open_runs
from watchglass.run.runs import runs_of
from watchglass.store import FrameKind, LocalStore, StoredObject
from watchglass.testing import build_run


def rewritten(run: Path, change: Callable[[Part], Part]) -> None:
    """Change the frames of a run."""
    for path in sorted(run.rglob("segments/*/*")):
        path.write_bytes(b"".join(frame(change(part)) for part in frames_of(path.read_bytes())))


def inflated(payload: bytes, rows: int) -> bytes:
    """Statistics with the same columns and so many rows of zeros: some kilobytes, however many they are."""
    with pa.ipc.open_stream(payload) as stream:
        schema = stream.read_all().schema
    columns = [
        pa.array([[]] * rows, field.type) if pa.types.is_list(field.type)
        else pa.array(np.ones(rows, field.type.to_pandas_dtype()) if field.name in ("count", "calls")
                      else np.zeros(rows, field.type.to_pandas_dtype()), field.type)
        for field in schema
    ]  # fmt: skip
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as out:
        out.write_batch(pa.record_batch(columns, schema=schema))
    return sink.getvalue().to_pybytes()


def too_large(part: Part) -> Part:
    """Refused: it would take more than 256 MiB when it is decompressed."""
    return part._replace(payload=inflated(part.payload, 2_500_000)) if part.kind == FrameKind.STATISTICS else part


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("bad", "good"):
        build_run(tmp_path / "runs" / name, training(20))
    return tmp_path / "runs"


@pytest.mark.slow
def test_a_frame_that_is_too_large_is_a_problem_of_its_run(runs: Path, watchglass: Watchglass) -> None:
    rewritten(runs / "bad", too_large)
    alone = watchglass("check", runs / "bad")
    assert alone.status == 2
    assert "at most 268435456 are read" in alone.err
    assert "not expected" not in alone.err
    many = watchglass("check", runs)
    assert many.status == 2
    assert "1 damaged, 1 without issues" in many.out
    assert watchglass("report", runs / "bad", "-o", runs / "r.html").status == 0
    followed = watchglass("follow", runs, "--wait", "0.5", "--until-idle", "0.5", "--timeout", "20")
    assert "not expected" not in followed.err
    run = open_run(runs / "bad")
    assert len(run.statistics().to_arrow()) == 0
    assert "at most 268435456 are read" in str(run.problems[0])


@pytest.mark.parametrize("error", [IndexError("out of range"), MemoryError(), RecursionError("deep"), KeyError(3)])
def test_an_unexpected_error_is_one_of_its_run(
    runs: Path, watchglass: Watchglass, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    whole = LocalStore.list

    def listed(self: LocalStore, prefix: str = "", after: str = "") -> list[StoredObject]:
        if self.location.endswith("bad"):
            raise error
        return whole(self, prefix, after)

    monkeypatch.setattr(LocalStore, "list", listed)
    checked = watchglass("check", runs)
    assert checked.status == 2
    assert "1 without issues" in checked.out
    assert "unreadable" in checked.out
    assert watchglass("show", runs).status in (0, 2)
    table = open_runs(runs).table().to_arrow().to_pylist()
    assert [row["train_steps"] for row in table if row["name"] == "good"] == [20]
    assert len(list(open_runs(runs))) == 1


class Closed(LocalStore):
    """Refuses to list one folder, also to root."""

    def folders(self, prefix: str = "") -> list[str]:
        if prefix == "closed":
            raise StoreError("cannot list closed: permission denied")
        return super().folders(prefix)


def test_a_folder_that_is_closed_to_us_hides_no_run(runs: Path) -> None:
    (runs / "closed").mkdir()
    found = runs_of(str(runs), RunSearch(Closed(runs)))
    assert sorted(found.names) == ["bad", "closed", "good"]
    assert [each.problem for each in found.listed if each.problem] == ["cannot list closed: permission denied"]
    assert len(list(found)) == 2
