"""The losses of batches, out of the running mean of Keras, with and without a known number of samples."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import watchglass  # noqa: E402
from watchglass.capture import Hook, attach, loop  # noqa: E402
from watchglass.capture.keras.backends import TensorFlow  # noqa: E402

pytestmark = [
    pytest.mark.own_process, pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]  # fmt: skip

#: Of 16 samples in a batch the last one of 72 batches is whole, or has eight.
SAMPLES = {"equal": 72 * 16, "shorter": 71 * 16 + 8}
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(SAMPLES["equal"], 4)).astype("float32")
Y = RANDOM.normal(size=(SAMPLES["equal"], 1)).astype("float32")


@pytest.mark.parametrize("kind", SAMPLES)
def test_losses_of_batches(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = X[: SAMPLES[kind]], Y[: SAMPLES[kind]]
    read, count = [0], TensorFlow.count
    monkeypatch.setattr(TensorFlow, "count", lambda self, metric: (read.append(0), count(self, metric))[1])
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse")  # so that the model remains as it is
    with Hook(tmp_path, strict=True, save_interval=50) as hook:
        attach(hook.port, loop("keras"))
        model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
        batches = len(x[::16])
        model.train_on_batch(x[:24], y[:24])  # without a reset of the mean, and of another size
    errors = ((model.predict(x, verbose=0) - y) ** 2).ravel()
    expected = [errors[first : first + 16].mean() for first in range(0, len(x), 16)] * 3 + [errors[:24].mean()]
    steps, losses = watchglass.open_run(tmp_path).scalars("loss")
    assert list(steps) == list(range(3 * batches + 1))
    np.testing.assert_allclose(losses, expected, rtol=2e-3)
    assert (len(read) < batches) == (kind == "equal")
