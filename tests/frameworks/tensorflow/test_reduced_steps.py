"""Compiled steps of TensorFlow that return statistics in place of tensors, as on a device; here on a CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from frameworks.reduced_cases import reduce_everything, same_runs

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
pytest.importorskip("keras", reason="Keras is not installed")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("keras_model", {"jit_compile": False}),
        ("keras_model", {"jit_compile": True}),
        ("keras_model", {}),
        ("gan", {"compiled": True}),
        ("networks_in_turn", {}),
        ("micro_batches", {"compiled": True}),
        ("module_by_hand", {"compiled": True}),
        ("scaled_loss", {}),
    ],
)
def test_rows_are_those_of_tensors(
    name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow_training as trainings
    from watchglass.capture.tensorflow.arrays import TensorFlowArrays

    train, steps = getattr(trainings, name), 7
    bare = trainings.bare(train, steps, **options)
    _, expected = trainings.watched(tmp_path / "host", train, steps, 3, **options)
    reduce_everything(monkeypatch, TensorFlowArrays, "watchglass.capture.tensorflow.tracing")
    training, found = trainings.watched(tmp_path / "device", train, steps, 3, **options)
    assert training.bits() == bare.bits()
    same_runs(found, expected)
