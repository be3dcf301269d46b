"""An offline run of Weights & Biases has what the run has; read back from the file that ``wandb sync`` uploads."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from waiting import PATIENCE_S
from watchglass.records import Finding, Mode, RuleStatus, Severity, Status
from watchglass.run import open_run
from watchglass.testing import Step, build_run

pytestmark = pytest.mark.slow

#: Bytes of a block of the file, a log of records as LevelDB has it, and of its head.
_BLOCK, _HEAD = 1 << 15, 7


def records(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), _HEAD, b""
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        left = _BLOCK - at % _BLOCK
        _, length, kind = struct.unpack_from("<IHB", data, at) if left >= 7 else (0, 0, 0)
        if not kind:
            at += left
            continue
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def named(items: Any) -> dict[str, Any]:
    """Values by name."""
    return {each.key or ".".join(each.nested_key): json.loads(each.value_json) for each in items}


def test_it_has_every_number_the_settings_and_the_verdict(tmp_path: Path) -> None:
    finding = Finding(
        "a" * 12, "DeadRelu", Severity.WARNING, 1, 1, 1, Mode.TRAIN, "worker_0", ("fc1.weight",), 1.0, 0.5, "dead"
    )
    made = [Step({"loss": 2.0 / (n + 1)}, statistics={"fc1.weight": [1.0, 2.0 + n]}) for n in range(4)]
    made.insert(2, Step({"loss": 7.0}, mode=Mode.EVAL))
    build_run(
        tmp_path / "mine", made, modules={"fc1": "Linear"},
        journal=[finding, RuleStatus("DeadRelu", Status.ISSUES_FOUND)],
        facts={"optimizer": {"type": "SGD", "groups": [{"lr": 0.1}]}},
    )  # fmt: skip
    command = [sys.executable, "-m", "watchglass", "export", "mine", "--to", "wandb", "-o", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == "to upload it: wandb sync out/wandb/offline-run-*"
    (path,) = (tmp_path / "out").glob("wandb/offline-run-*/*.wandb")
    found: dict[str, Any] = {"rows": [], "config": {}, "summary": {}}
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = [
                (each.key or ".".join(each.nested_key), json.loads(each.value_json)) for each in record.history.item
            ]
            found["rows"].append(dict(items))
        elif kind == "run":
            found["config"] = named(record.run.config.update)
            assert (record.run.run_id, record.run.display_name) == (open_run(tmp_path / "mine").manifest.run_id, "mine")
        elif kind == "summary":
            found["summary"] |= named(record.summary.update)
    train = {row["train_step"]: row for row in found["rows"] if "train/loss" in row}
    assert {step: row["train/loss"] for step, row in train.items()} == {n: 2.0 / (n + 1) for n in range(4)}
    assert [train[n]["train/weight/fc1.weight/max"] for n in range(4)] == [2.0, 3.0, 4.0, 5.0]
    assert [(row["train_step"], row["eval/loss"]) for row in found["rows"] if "eval/loss" in row] == [(1, 7.0)]
    assert found["config"]["lr"] == "0.1"
    assert found["summary"]["watchglass/verdict"] == "issues found: 1 warning"
