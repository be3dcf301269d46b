"""The mode in which layers of Keras run is an argument of their calls: it is recorded, and a wrong one is found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import watchglass  # noqa: E402
from watchglass.capture import Hook, attach, loop  # noqa: E402
from watchglass.config import RuleSpec  # noqa: E402
from watchglass.evaluate import replay  # noqa: E402

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

RULES = [RuleSpec("TrainEvalMode"), RuleSpec("NormalizationNeverUpdated")]
X = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")


class Network(keras.Model):  # type: ignore[misc]  # of a library without types
    """Normalises, drops nothing, and drops, each in the mode that is given, or in that of the call."""

    def __init__(self, normalizes: bool | None = None, drops: bool | None = None) -> None:
        super().__init__()
        self.dense, self.norm = keras.layers.Dense(8), keras.layers.BatchNormalization()
        self.none, self.drop = keras.layers.Dropout(0.0), keras.layers.Dropout(0.2)
        self.last = keras.layers.Dense(1)
        self.given = normalizes, drops

    def call(self, inputs: Any, training: bool = False) -> Any:
        """The outputs."""
        normalizes, drops = (training if each is None else each for each in self.given)
        hidden = self.none(self.norm(self.dense(inputs), training=normalizes), training=training)
        return self.last(self.drop(hidden, training=drops))


def fit(path: Path, model: Any) -> Any:
    model.compile(loss="mse", optimizer=keras.optimizers.Adam(1e-3))
    with Hook(path, save_interval=1, strict=True) as hook:
        attach(hook.port, loop("keras"))
        model.fit(X, X[:, :1], batch_size=8, epochs=2, verbose=0, validation_data=(X, X[:, :1]))
    return watchglass.open_run(path)


def test_the_modes_of_layers_that_depend_on_them_are_recorded_once(tmp_path: Path) -> None:
    training, evaluation = (
        fact.data for fact in fit(tmp_path / "run", Network(normalizes=False)).facts("training_flags")
    )
    assert training["sensitive"] == {"BatchNormalization": [0, 1], "Dropout": [1, 0]}
    assert (training["training"], training["modules"], training["in_training"]) == (True, 2, 1)
    assert training["different"] == [["batch_normalization", "BatchNormalization", False]]
    assert evaluation["sensitive"] == {"BatchNormalization": [0, 1], "Dropout": [0, 1]}
    assert evaluation["training"] is False


@pytest.mark.parametrize(
    ("mode", "symptom"), [(True, "training_mode_in_evaluation"), (False, "evaluation_mode_in_training")]
)
def test_a_constant_mode_is_found(mode: bool, symptom: str, tmp_path: Path) -> None:
    fit(tmp_path / "run", Network(normalizes=mode, drops=mode))
    assert {each for finding in replay(str(tmp_path / "run"), RULES).findings for each in finding.symptoms} == {symptom}


def test_a_model_with_trained_statistics_may_be_tuned_in_evaluation_mode(tmp_path: Path) -> None:
    model = Network(normalizes=False, drops=False)
    model(X)
    model.norm.moving_mean.assign(np.full(8, 0.5))
    fit(tmp_path / "run", model)
    assert not replay(str(tmp_path / "run"), RULES).findings
