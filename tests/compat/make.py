"""How the runs beside this file were made: ``python tests/compat/make.py 1.1`` writes tests/compat/1.1 anew.

A run, once it is here, is never written again: it stands for all the runs of its version that people have. This file
says what is in them, and makes the run of the next version. The writer of 1.1 differs from that of 1.2 in the version
that it writes and in nothing else, as far as a run that is not compacted goes. The run of 1.2 is compacted but for its
last attempt.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np

from watchglass.records import Finding, Mode, Observation, Origin, Reduction, Role, RuleStatus, Severity, Status
from watchglass.records import TensorInfo as Info
from watchglass.store import Claim, JournalWriter, LocalStore, RawTensor, compact, encode_catalog, encode_frame, layout
from watchglass.testing import Row, RunBuilder, Step

HERE = Path(__file__).parent
#: The process that wrote them, on no machine of anybody.
PROCESS = Claim(4242, 1, "00000000-0000-0000-0000-000000000000", "host", 1_790_000_000_000_000_000)

GRADIENT = np.array([[1, 2, 4], [-1, -2, -4]], "f4")
UNUSUAL = np.array([[0, np.nan, np.inf, -np.inf, 1.5, -3, 0, 0, 96]], "f4")
#: One tensor of each dtype that is stored as it is; bits where NumPy has no such numbers.
RAW = {
    "fc1.weight": np.arange(6, dtype="f4").reshape(2, 3),
    "half": np.array([0.5, -65504], "f2"),
    "flags": np.array([True, False]),
    "counts": np.array([-(2**62), 7], "i8"),
    "number": np.array(3.25),
    "nothing": np.empty((0, 3), "f4"),
    "complex": np.array([[1 + 2j], [-0.5j]], "c16"),
    "brain": RawTensor(0, np.array([0x3F80, 0xC0A0, 0x7F80], "u2"), "bfloat16"),
    "fp8": RawTensor(0, np.array([0x38, 0xC0, 0x7E], "u1"), "float8_e4m3fn"),
    "fp8_wide": RawTensor(0, np.array([0x3C, 0xC2, 0x7B], "u1"), "float8_e5m2"),
}


def steps_of_the_first_attempt() -> Iterator[Step]:
    for n in range(4):
        even = n % 2 == 0
        yield Step(
            scalars={"loss": 1 / (n + 1), "lr": 0.5},
            statistics={
                "fc1.weight": np.arange(6, dtype="f4").reshape(2, 3) + n,
                "gradient/fc1.weight": GRADIENT * 2**n,
                "fc1.output": UNUSUAL,
                "fc2.weight": Row({"count": 10, "sum": 5, "l2": 2.5}, (4, 5), sampled=True, calls=3),
            } if even else {"fc1.weight": Row({"count": 6, "max": 99}, (2, 3), origin=Origin.FINDING)},
            units={"fc1.output": [False, True, False, False, False, False, False, True, True]} if even else {},
            facts={"step_skipped": {"scale": 2.0, "numbers": ["NaN", None, 2**70]}} if n == 1 else {},
            raw=RAW if n == 2 else {},
            reductions={"fc1.weight": {which: n + int(which) / 2 for which in Reduction}} if even else {},
        )  # fmt: skip
        if n == 1:
            for accuracy in (0.25, 0.75):
                scalars = {"accuracy": accuracy}
                yield Step(scalars, {"fc1.output": UNUSUAL}, mode=Mode.EVAL, weight=32.0, workers=[0])
    yield Step({"loss": float("nan")}, mode=Mode.PREDICT, workers=[1])


JOURNAL = [
    Finding(
        "0123456789ab", "R", Severity.WARNING, 1, 1, 1, Mode.TRAIN, "worker_0", ("fc1.weight",), 1.0, 0.5, "was replaced"  # noqa: E501
    ),
    Observation("worker_lost", 0, (3, 0, 3), {"worker": "worker_1"}),
    Finding(
        "0123456789ab", "R", Severity.ERROR, 1, 3, 3, Mode.TRAIN, "worker_0", ("fc1.weight",), float("nan"),
        float("inf"), "it is bad: ü", ("learning_rate_too_high",), ("lower it",), 0, 1, {"x": [1, "NaN"]},
    ),
    RuleStatus("R", Status.ISSUES_FOUND),
    RuleStatus("S", Status.STARVED, "nothing to eat"),
]  # fmt: skip


@contextmanager
def writing(version: tuple[int, int]) -> Iterator[None]:
    """The writer of a version, in a process that is always the same."""
    with (
        mock.patch.multiple("watchglass.store.writer", FORMAT_VERSION=version),
        mock.patch.multiple("watchglass.store.manifest", FORMAT_VERSION=version),
        mock.patch("watchglass.store.claim.this_process", return_value=PROCESS),
        mock.patch("watchglass.testing.builder.this_process", return_value=PROCESS),
    ):
        yield


def write(folder: Path, version: tuple[int, int]) -> None:
    """A run of two attempts of two workers with everything in it that the format knows."""
    given = [
        Info(0, "embedding.weight", Role.WEIGHT, "embedding", "Embedding", 7, (9, 2), "float16", 0, False, "shard")
    ]
    modules = {"fc1": "Linear", "fc2": "Linear"}
    with writing(version):
        with RunBuilder(folder, modules=modules, tensors=given, workers=2) as builder:
            builder.facts({"model": {"module_types": modules}, "planned_steps": {"steps": 8, "source": "test"}})
            for number, step in enumerate(steps_of_the_first_attempt()):
                builder.step(step, flush=number in (2, 4))
            builder.flush()
            # What a name is, was known late: rows that were written before have it, too.
            late = Info(1, "learning_rate", Role.METRIC)
            unknown_kind = encode_frame(99, b"of a later release")
            builder.workers[0]._writer.write([encode_catalog([late]), unknown_kind])
        if version >= (1, 2):
            compact(LocalStore(folder), even_if_unseen=True, must=True)
        with RunBuilder(folder, modules=modules, tensors=given, workers=2) as builder:
            for n in range(3):
                builder.step(
                    {"scalars": {"loss": 10.0 + n}, "statistics": {"embedding.weight": np.full((9, 2), n, "f2")}}
                )
            builder.leave("stopped", reason="asked to")
            store = builder.store
        _stop(store)
        with JournalWriter(store) as writer:
            writer.write(JOURNAL[:2])
            writer.write(JOURNAL[2:])


def _stop(store: LocalStore) -> None:
    records = {
        layout.stop_request(1): {"finding": "0123456789ab", "reason": "it is bad", "wall_ns": PROCESS.wall_ns},
        layout.stop_seen(1, "worker_0"): {"train_step": 1, "wall_ns": PROCESS.wall_ns},
        layout.stop_seen(1, "worker_1"): {"train_step": 1, "wall_ns": PROCESS.wall_ns},
        layout.stop_commit(1): {"stop_at_step": 2, "reason": "it is bad", "finding": "0123456789ab"},
    }
    for path, record in records.items():
        store.write(path, json.dumps(record).encode())


if __name__ == "__main__":
    major, minor = map(int, sys.argv[1].split("."))
    target = HERE / sys.argv[1]
    if target.exists():
        sys.exit(f"{target} is kept as it is; remove it first if it was never released")
    write(target, (major, minor))
    for hidden in target.rglob(".*"):
        shutil.rmtree(hidden) if hidden.is_dir() else hidden.unlink()
