"""Faults of watchglass around a call of Keras's functions end the capture, and never ``fit``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
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
from watchglass.capture.keras import backends, functions, models  # noqa: E402

pytestmark = [pytest.mark.own_process, pytest.mark.slow]


def _fit() -> list[Any]:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(24, 4)).astype("float32"), random.normal(size=(24, 1)).astype("float32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=keras.optimizers.SGD(0.1))
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return [history.history, *(weight.tobytes() for weight in model.get_weights())]


@pytest.fixture(scope="module")
def bare() -> list[Any]:
    return _fit()


@contextmanager
def watching(path: Path) -> Iterator[None]:
    with Hook(path, save_interval=1, strict=False) as hook:
        attach(hook.port, loop("keras"))
        yield


def _raises(*args: Any) -> Any:
    raise ZeroDivisionError("a fault of ours")


PLACES = [
    (models.KerasModel, "trains"), (functions.WatchedFunction, "twin"), (backends.TensorFlow, "taken"),
    (backends.Backend, "logs"),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
def test_a_fault_ends_the_capture_alone(
    owner: type, name: str, bare: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, property(_raises) if name == "twin" else _raises)
        with watching(tmp_path / "run"):
            assert _fit() == bare
    assert [each.message for each in caplog.records if "capture is off" in each.message] != []


def test_values_that_do_not_come_back_cost_tensors_alone(
    bare: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some releases of Keras look up the step as they trace the function, others as they make it."""
    monkeypatch.setattr(backends.Backend, "with_values", lambda self, result, values: result)
    with watching(tmp_path / "run"):
        assert _fit() == bare
    run = watchglass.open_run(tmp_path / "run")
    assert len(run.scalars("loss")[0]) == 6
    assert not [name for name in run.tensor_names() if name.startswith("gradient/")]
