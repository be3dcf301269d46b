"""Sound runs and files to start from, made for each run of the tests: the repository holds no binary files."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from watchglass.records import Finding, Mode, ModuleKind, Observation, Reduction, RuleStatus, Severity, Status
from watchglass.store import LocalStore, RawTensor, layout
from watchglass.testing import RunBuilder, Step, build_run

_FINDING = Finding(
    "0123456789ab", "DeadRelu", Severity.ERROR, 1, 2, 2, Mode.TRAIN, "worker_0", ("fc1.weight",), 1.0, None, "it died",
    ("dying_relu",), ("try",), 0, 1, {"x": [1]},
)  # fmt: skip


@cache
def scratch() -> Path:
    """A folder of this process that is gone when it ends; in memory where that is possible."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="wg-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _steps() -> list[Step]:
    generator = np.random.default_rng(0)
    return [
        Step(
            {"loss": 1.0 / (number + 1), "learning_rate": 0.1},
            {"fc1.weight": generator.normal(size=(4, 3)).astype("f4"), "gradient/fc1.weight": np.ones((4, 3), "f4"),
             "fc1.output": generator.normal(size=(2, 4)).astype("f4")},
            {"fc1.output": [True, False, True, False]},
            {"model": {"module_types": {"fc1": "Linear"}, "module_kinds": {"fc1": "linear"}}, "batch": {"hash": "00"}},
            {"fc1.weight": np.ones((4, 3), "f4"), "brain": RawTensor(0, np.ones(3, "u2"), "bfloat16"),
             "complex": np.ones(2, "c16")},
            Mode.EVAL if number % 3 == 2 else Mode.TRAIN,
            reductions={"fc1.weight": {Reduction.MEDIAN: 1.0}},
        )
        for number in range(6)
    ]  # fmt: skip


@cache
def run() -> Path:
    """A run with everything in it: two workers, two attempts, all kinds of frames, a journal, a stop, raw tensors."""
    path = scratch() / "seed"
    journal = [
        RuleStatus("DeadRelu", Status.ISSUES_FOUND),
        _FINDING,
        Observation("worker_lost", 0, (1, 0, 1), {"a": 1}),
    ]
    build_run(path, _steps(), workers=2, journal=journal, modules={"fc1": ModuleKind.RECTIFIER}, steps_per_flush=3)
    with RunBuilder(path, modules={"fc1": ModuleKind.RECTIFIER}, workers=2) as builder:
        for step in _steps()[:3]:
            builder.step(step)
        builder.leave("failed", reason="why")
    store = LocalStore(path)
    store.write(layout.control_request("stop", 1), b'{"finding": "0123456789ab", "reason": "r", "wall_ns": 1}')
    store.write(layout.control_seen("stop", 1, 0, "worker_0"), b'{"train_step": 1, "wall_ns": 1}')
    store.write(
        layout.control_commit("stop", 1), b'{"at_step": 2, "reason": "r", "finding": "0123456789ab", "wall_ns": 1}'
    )
    return path


@cache
def files() -> dict[str, bytes]:
    """Content of that run by path."""
    store = LocalStore(run())
    return {entry.path: store.read(entry.path) for entry in store.list()}


@cache
def file(ending: str) -> bytes:
    """The first file of that run whose path has an ending."""
    return next(data for path, data in sorted(files().items()) if path.endswith(ending))


@cache
def payloads(kind: int) -> list[bytes]:
    """Payloads of all frames of a kind in that run."""
    from fuzz.hostile import frames_of

    segments = [data for data in files().values() if data[:4] == b"WGF1"]
    return [part.payload for data in segments for part in frames_of(data) if part.kind == kind]


@cache
def arrow_streams() -> list[bytes]:
    """Statistics as this and other writers have them: with and without histograms, by every compression or none."""
    import pyarrow as pa

    known = payloads(4)
    found = list(known)
    with pa.ipc.open_stream(known[0]) as stream:
        table = stream.read_all()
    for compression in ("zstd", "lz4", None):
        for chosen in (table, table.drop_columns(["histogram_bins", "histogram_seen", "histogram_first"])):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, chosen.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as out:
                out.write_table(chosen)
            found.append(sink.getvalue().to_pybytes())
    return found


def sample() -> dict[str, Any]:
    """Names of fields that JSON of a run has, for objects made from nothing."""
    return {"name": "fc1.weight", "role": "weight", "tensor_id": 1, "kind": "model", "data": {}, "event": "joined"}
