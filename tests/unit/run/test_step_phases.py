"""Reading the phases of steps, from runs that are made of numbers."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from watchglass import Mode, open_run
from watchglass.cli.run_contents import head_of
from watchglass.diagnose import verdict
from watchglass.errors import MissingExtraError
from watchglass.records import PHASES
from watchglass.run import Run
from watchglass.testing import Step, build_run

TRAIN, EVAL = (0.038, 0.002, 0.0, 0.02, 0.03, 0.01, 0.0, 0.0), (0.001, 0.0, 0.0, 0.005, 0.0, 0.0, 0.0, 0.004)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    steps = []
    for n in range(12):
        mode = Mode.EVAL if n % 4 == 3 else Mode.TRAIN
        rows = [EVAL if mode is Mode.EVAL else tuple(value * (1 + n / 10) for value in TRAIN)]
        steps.append(Step({"loss": 1.0}, mode=mode, rows={PHASES: rows if n != 5 else []}))
    return open_run(build_run(tmp_path / "run", steps))


def test_phases_are_read_by_mode(run: Run) -> None:
    phases = run.phases()
    assert phases.steps.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]  # of step 4 there are none
    np.testing.assert_allclose(phases["data"][:3], [0.038, 0.0418, 0.0456], rtol=1e-6)
    np.testing.assert_allclose(phases.seconds[:2], [0.1, 0.11], rtol=1e-6)
    assert sum(phases.shares.values()) == pytest.approx(1)
    assert phases.shares["backward"] == pytest.approx(0.3)
    evaluated = run.phases(Mode.EVAL)
    assert (evaluated.steps.tolist(), evaluated.shares["data"]) == ([0, 1, 2], pytest.approx(0.1))
    assert len(run.phases(Mode.GLOBAL)) == 11


def test_the_mean_step_is_described_in_few_words(run: Run) -> None:
    rows = dict(head_of(run))
    assert rows["time"] == (
        "training step 150 ms on average: 38 % waits for data, 2 % prepares it, 20 % forward, 30 % backward, "
        "10 % update"
    )
    assert repr(run.phases()).startswith("Phases(8 TRAIN steps of 'worker_0': data 38 %, prepare 2 %")


def test_each_of_several_workers_has_its_phases_with_its_name(tmp_path: Path) -> None:
    steps = [Step({"loss": 1.0}, rows={PHASES: [TRAIN]})] * 12
    run = open_run(build_run(tmp_path / "run", steps, workers=10))
    times = [text for label, text in head_of(run) if label == "time"]
    assert [text.partition(": ")[0] for text in times] == [f"worker_{rank}" for rank in range(8)]
    assert times[1].startswith("worker_1: training step 100 ms on average: 38 % waits for data")


def test_steps_that_are_far_longer_are_counted_separately(tmp_path: Path) -> None:
    compiling = (0.0, 0.0, 0.0, 30.0, 10.0, 0.0, 0.0, 0.0)
    steps = [Step({"loss": 1.0}, rows={PHASES: [compiling if n in (0, 9) else TRAIN]}) for n in range(22)]
    run = open_run(build_run(tmp_path / "run", steps))
    assert run.phases().typical().steps.tolist() == [n for n in range(22) if n not in (0, 9)]
    assert dict(head_of(run))["time"] == (
        "training step 100 ms on average: 38 % waits for data, 2 % prepares it, 20 % forward, 30 % backward, "
        "10 % update; 2 far longer steps took 1 min 20 s of 1 min 22 s"
    )
    assert len(run.phases(Mode.EVAL).typical()) == 0


def test_steps_that_are_often_far_longer_are_typical(tmp_path: Path) -> None:
    long = (0.0, 0.0, 0.0, 30.0, 10.0, 0.0, 0.0, 0.0)
    steps = [Step({"loss": 1.0}, rows={PHASES: [TRAIN if n % 6 else long]}) for n in range(24)]
    assert len(open_run(build_run(tmp_path / "run", steps)).phases().typical()) == 24


def test_damaged_phases_leave_the_run_readable(tmp_path: Path) -> None:
    rows = [tuple(math.nan for _ in TRAIN) if n == 3 else TRAIN for n in range(8)]
    run = open_run(build_run(tmp_path / "run", [Step({"loss": 1.0}, rows={PHASES: [row]}) for row in rows]))
    assert len(run.phases().typical()) == 8
    assert dict(head_of(run))["time"].startswith("training step unknown time on average")


def test_the_verdict_has_the_shares(run: Run) -> None:
    assert verdict(run).capture["phases"]["data"] == pytest.approx(0.38)


def test_a_run_without_phases_has_none(tmp_path: Path) -> None:
    run = open_run(build_run(tmp_path / "run", [Step({"loss": 1.0})]))
    assert len(run.phases()) == 0
    assert "time" not in dict(head_of(run))
    assert repr(run.phases()) == "Phases(0 TRAIN steps of 'worker_0': none)"
    assert "phases" not in verdict(run).capture


def test_a_data_frame_needs_pandas(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pandas"):
        run.phases().to_pandas()
