"""The same calls on runs in an object store, copied there object by object."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from watchglass.config import joined
from watchglass.records import Mode
from watchglass.run import open_run, open_runs
from watchglass.store import LocalStore, RawTensor, open_store
from watchglass.testing import Step, build_run

pytestmark = pytest.mark.slow  # for two tests a server would be started


def copied(path: str, location: str) -> None:
    source, target = LocalStore(path), open_store(location)
    for entry in source.list():
        target.write(entry.path, source.read(entry.path))
    target.close()


@pytest.fixture
def places(tmp_path: Path, s3_location: str) -> tuple[str, str]:
    """A run in a folder, and the same in an object store."""
    bits = np.array([0x3F80, 0xC000], "u2")  # 1 and -2
    raw = {"fc1.weight": np.arange(6, dtype="f4").reshape(2, 3), "half": RawTensor(0, bits, "bfloat16")}
    steps = [
        Step({"loss": 1.0 / (n + 1)}, {"fc1.weight": np.full((2, 3), n)}, raw=raw if n == 2 else {},
             mode=Mode.EVAL if n == 3 else Mode.TRAIN)
        for n in range(5)
    ]  # fmt: skip
    path = build_run(tmp_path / "runs" / "one", steps, modules={"fc1": "Linear"})
    remote = joined(s3_location, "group/one")
    copied(path, remote)
    return path, remote


def test_a_run_in_an_object_store_reads_as_one_in_a_folder(places: tuple[str, str]) -> None:
    here, there = map(open_run, places)
    assert there.location.startswith("s3://")
    assert there.steps(Mode.GLOBAL) == here.steps(Mode.GLOBAL) == list(range(5))
    table = here.statistics(worker="all", mode=Mode.GLOBAL, histograms=True).to_arrow()
    assert there.statistics(worker="all", mode=Mode.GLOBAL, histograms=True).to_arrow().equals(table)
    assert there.tensor("fc1.weight").value(2).tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert there.tensor("half").torch(2).tolist() == there.tensor("half").value(2).tolist() == [1.0, -2.0]
    assert there.step(0).statistics().names == here.step(0).statistics().names
    there.wait_for_steps([0, 3], timeout_s=0)
    assert open_run(places[1], steps=(1, 3)).steps() == [1, 2]


def test_runs_below_a_prefix_are_listed(places: tuple[str, str], s3_location: str) -> None:
    runs = open_runs(s3_location)
    assert runs.names == ["group/one"]
    assert runs.to_arrow()["train_steps"].to_pylist() == [4]
    assert runs["group/one"].location == places[1]
    assert open_runs(places[1]).names == ["one"]
