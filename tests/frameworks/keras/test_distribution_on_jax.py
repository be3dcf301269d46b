"""Keras on JAX over several devices: the devices are parts of the processor."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.own_process, pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]  # fmt: skip

os.environ.update(
    KERAS_BACKEND="jax", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu",
    XLA_FLAGS="--xla_force_host_platform_device_count=2 --xla_cpu_multi_thread_eigen=false",
)  # fmt: skip
with suppress(ImportError):
    importlib.import_module("tensorflow")  # Keras may import it later, which sets environment variables
pytest.importorskip("jax", reason="JAX is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import watchglass  # noqa: E402
from watchglass.capture import Hook, attach, loop  # noqa: E402
from watchglass.records import facts  # noqa: E402


def _train() -> list[Any]:
    random = np.random.default_rng(0)
    inputs, labels = random.random((64, 6)).astype("float32"), random.integers(0, 2, 64)
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(2)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(inputs, labels, batch_size=16, epochs=2, validation_split=0.25, verbose=0).history
    return [history, *(weight.tobytes() for weight in model.get_weights())]


def test_data_parallel_training_keeps_its_numbers(tmp_path: Path) -> None:
    devices = keras.distribution.list_devices()
    assert len(devices) == 2
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    bare = _train()
    for interval in (1, 3):
        with Hook(tmp_path / str(interval), save_interval=interval, strict=True) as hook:
            attach(hook.port, loop("keras"))
            assert _train() == bare
    run = watchglass.open_run(tmp_path / "1")
    assert run.facts(facts.NotCapturable) == []
    assert run.scalars("loss")[0].tolist() == list(range(6))
    assert run.tensor("gradient/dense.kernel").reductions("mean")[0].tolist() == list(range(6))
