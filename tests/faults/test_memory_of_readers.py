"""Some kilobytes of a run that stand for gigabytes: refused with a line, and the healthy run beside it is judged."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from command_line import training
from fuzz.hostile import Part, frame, frames_of
from watchglass.store import FrameKind
from watchglass.testing import build_run

ROWS, FRAMES = 1_000_000, 5
BUDGET, SPACE = 128 << 20, 6 << 30


def rows_of(payload: bytes, steps: np.ndarray) -> bytes:
    """Statistics of these steps, all of one tensor."""
    with pa.ipc.open_stream(payload) as stream:
        schema = stream.read_all().schema
    n = len(steps)
    made = []
    for field in schema:
        if pa.types.is_list(field.type):
            made.append(pa.array([[]] * n, field.type))
        else:
            value = steps if field.name == "global_step" else np.full(n, int(field.name in ("count", "calls")))
            made.append(pa.array(value.astype(field.type.to_pandas_dtype()), field.type))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as out:
        out.write_batch(pa.record_batch(made, schema=schema))
    return sink.getvalue().to_pybytes()


def inflate(run: Path, steps: np.ndarray) -> None:
    for path in sorted(run.rglob("segments/*/*")):
        parts: list[Part] = []
        for part in frames_of(path.read_bytes()):
            if part.kind != FrameKind.STATISTICS:
                parts.append(part)
            elif not any(each.kind == FrameKind.STATISTICS for each in parts):
                parts += [part._replace(payload=rows_of(part.payload, steps))] * FRAMES
        path.write_bytes(b"".join(map(frame, parts)))


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))


def watchglass(*words: str | Path) -> tuple[int, str, int]:
    """Exit status, output, and the most memory that it had."""
    environ = {**os.environ, "WATCHGLASS_READ_MEMORY": str(BUDGET), "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "watchglass", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ, preexec_fn=limited,
    )  # fmt: skip
    with process:
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, output, used.ru_maxrss << 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one step", "steps in turns"])
def test_a_run_that_inflates_is_refused_and_the_one_beside_it_judged(tmp_path: Path, kind: str) -> None:
    for name in ("bad", "good"):
        build_run(tmp_path / "runs" / name, training(20))
    steps = np.zeros(ROWS, "u8") if kind == "one step" else np.arange(ROWS, dtype="u8") % 2
    inflate(tmp_path / "runs/bad", steps)
    assert sum(path.stat().st_size for path in (tmp_path / "runs/bad").rglob("*") if path.is_file()) < 2 << 20
    for words in (
        ("check", tmp_path / "runs"),
        ("follow", tmp_path / "runs", "--until-idle", "0.5", "--timeout", "60"),
    ):
        status, output, peak = watchglass(*words)
        assert status == 2, output
        assert "MiB of memory but at most 128 MiB are allowed" in output
        assert "no issues found" in output, "the other run is judged"
        assert peak < 1200 << 20
    for words in (("report", tmp_path / "runs/bad", "-o", tmp_path / "r.html"), ("check", tmp_path / "runs/bad")):
        status, output, peak = watchglass(*words)
        assert status == 2
        assert "watchglass: error: reading this run takes" in output
        assert peak < 1200 << 20
