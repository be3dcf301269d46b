"""Runs of earlier versions of the format are read for ever; each lies under tests/formats as it was written."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from watchglass.errors import UnknownNameError
from watchglass.records import FORMAT_VERSION, Mode, Role, UnitKind
from watchglass.run import open_run
from watchglass.stats import of_array
from watchglass.testing import Step, build_run

FORMATS = Path(__file__).parents[2] / "formats"


def test_a_run_of_format_1_0(tmp_path):
    """Written before there were histograms and exact reductions."""
    shutil.copytree(FORMATS / "1.0", tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert run.manifest.format == (1, 0)
    assert run.problems == []
    assert run.finished
    assert run.workers == ["worker_0", "worker_1"]
    assert run.steps() == [0, 1, 2, 3, 4, 5]
    assert run.steps(Mode.EVAL) == [0]
    assert run.scalars("loss")[1].tolist() == [1 / (n + 1) for n in range(6)]
    weights = np.arange(6.0).reshape(2, 3)
    tensor = run.tensor("fc1.weight")
    steps, means = tensor.reductions("mean")
    assert (steps.tolist(), means.tolist()) == ([0, 2, 4], [2.5, 4.5, 6.5])
    assert np.array_equal(tensor.value(4), weights + 4)
    assert tensor.reduction(4, "median") == 6.5  # from the whole tensor
    assert tensor.histograms() == {}
    with pytest.raises(UnknownNameError, match="no histogram"):
        tensor.histogram(2)
    statistics = run.statistics(2, Role.GRADIENT)
    assert statistics.names == ["gradient/fc1.weight"]
    assert statistics.values.tobytes() == of_array(2 * weights)[None].tobytes()
    assert np.isnan(statistics.quantile(0.5)).all()
    ((_, kind, flags),) = run.tables().units(2)
    assert (kind, flags.tolist()) == (UnitKind.INACTIVE, [False, True, False])
    assert [fact.kind for fact in run.facts()] == ["model", "step_skipped"]
    assert [finding.rule for finding in run.findings()] == ["R"]


def test_what_is_written_now_says_so(tmp_path):
    run = open_run(build_run(tmp_path / "run", [Step({"loss": 1.0})]))
    assert run.manifest.format == FORMAT_VERSION
    assert FORMAT_VERSION > (1, 0)
