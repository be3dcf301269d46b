"""Moving averages of Keras's batch normalizations in loops with a tape: a model may not be told that it is trained."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from watchglass.evaluate import judge_run
from watchglass.records import facts

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
pytest.importorskip("keras", reason="Keras is not installed")


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("options", [{}, {"reduce_retracing": True}])
def test_averages_that_nothing_updates_are_found(trained: bool, options: dict[str, Any], tmp_path: Path) -> None:
    from tensorflow_training import bare, keras_model, watched

    expected = bare(keras_model, 12, trained=trained, **options)
    training, run = watched(tmp_path / "run", keras_model, 12, 3, trained=trained, **options)
    assert training.bits() == expected.bits()
    states = [each for fact in run.facts(facts.NormalizationStatistics) for each in fact.modules or ()]
    assert {(each.module, each.momentum, each.initial) for each in states} == {
        ("batch_normalization", 0.01, not trained)
    }
    assert states[0].training is trained
    assert states[0].mean_off is not None
    fired = {finding.rule for finding in judge_run(run).findings}
    assert ("NormalizationNeverUpdated" in fired) is not trained
