"""Uses of Keras that are less common: data, steps and functions of the script, two frameworks, releases too old."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
tensorflow = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")

import watchglass  # noqa: E402
from watchglass.capture import FRAMEWORKS, Hook, attach, frameworks, loop  # noqa: E402
from watchglass.records import facts  # noqa: E402

pytestmark = [
    pytest.mark.own_process, pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Your `PyDataset` class:UserWarning"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning"),
]  # fmt: skip

RANDOM = np.random.default_rng(0)
X = RANDOM.random((60, 6)).astype("float32")
Y = (X.sum(1) > 3).astype("int32")
Trained = list[Any]
layers = keras.layers


def compiled(kind: Any = None) -> Any:
    keras.utils.set_random_seed(0)
    model = (kind or keras.Sequential)([keras.Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(2)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def fit(model: Any, *data: Any, epochs: int = 2) -> Trained:
    history = model.fit(*(data or (X, Y)), batch_size=None if data else 15, epochs=epochs, verbose=0).history
    return [history, *(weight.tobytes() for weight in model.get_weights())]


def with_workers() -> Trained:
    class Batches(keras.utils.PyDataset):  # type: ignore[name-defined,misc]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            rows = slice(15 * index, 15 * index + 15)
            return X[rows], Y[rows]

    return fit(compiled(), Batches(workers=2))


def without_labels() -> Trained:
    """An autoencoder whose loss is what its layers add."""

    class Autoencoder(keras.Model):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = layers.Dense(3, activation="tanh"), layers.Dense(6)

        def call(self, inputs: Any) -> Any:
            decoded = self.decode(self.encode(inputs))
            self.add_loss(keras.ops.mean((decoded - inputs) ** 2))
            return decoded

    keras.utils.set_random_seed(0)
    model = Autoencoder()
    model.compile("adam")
    return fit(model, tensorflow.data.Dataset.from_tensor_slices(X).batch(15))


def remade() -> Trained:
    """A model that cannot make its function a second time."""

    class Once(keras.Sequential):  # type: ignore[name-defined,misc]
        def make_train_function(self, force: bool = False) -> Any:
            if self.train_function is not None and force:
                raise RuntimeError("it is made once")
            return super().make_train_function(force)

    return fit(compiled(Once))


def traced_once() -> Trained:
    """A step that raises where it is traced for its values."""

    class Step(keras.Sequential):  # type: ignore[name-defined,misc]
        def train_step(self, *args: Any) -> Any:
            if "train_step" in vars(self):
                raise ZeroDivisionError("this is no training")
            return super().train_step(*args)

    return fit(compiled(Step))


@pytest.mark.parametrize("train", [with_workers, without_labels, remade, traced_once])
def test_the_training_is_the_same_and_has_its_losses(train: Callable[[], Trained], tmp_path: Path) -> None:
    bare = train()
    for interval in (1, 3, 10**6):
        path = tmp_path / str(interval)
        with Hook(path, save_interval=interval, strict=True) as hook:
            attach(hook.port, loop("keras"))
            assert train() == bare
        run = watchglass.open_run(path)
        assert run.scalars("loss")[0].tolist() == list(range(8))
        untraced = [each.modules for each in run.facts(facts.NotCapturable)]
        assert untraced == ([("Step.train_step",)] if train is traced_once else [])


def test_a_model_that_is_attached_twice_is_recorded_once(tmp_path: Path) -> None:
    bare = fit(compiled())
    model = compiled()
    with Hook(tmp_path / "run", save_interval=1, strict=True) as hook:
        for watched in (None, None, model):
            attach(hook.port, loop("keras"), watched)
        assert fit(model) == bare
    assert watchglass.open_run(tmp_path / "run").steps() == list(range(8))


def test_pytorch_trains_between_two_fits(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def train() -> Trained:
        model = compiled()
        found = fit(model)
        torch.manual_seed(0)
        net = torch.nn.Linear(6, 2)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(torch.tensor(X)), torch.tensor(Y).long())
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        found += [each.detach().numpy().tobytes() for each in net.parameters()]
        return found + fit(model, epochs=1)

    bare = train()
    with Hook(tmp_path / "run", save_interval=1, strict=True) as hook:
        for name in ("torch", "tensorflow", "keras"):
            attach(hook.port, loop(name))
        assert train() == bare
    run = watchglass.open_run(tmp_path / "run")
    assert run.steps() == list(range(8 + 5 + 4))
    of_keras = run.tensor("gradient/dense.kernel").reductions("mean")[0].tolist()
    assert of_keras == [*range(8), *range(13, 17)]
    assert run.tensor("gradient/model_2.weight").reductions("mean")[0].tolist() == list(range(8, 13))
    assert run.scalars("model_2/loss")[0].tolist() == list(range(8, 13))


def test_a_release_that_is_too_old_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [each for each in sys.modules if each.startswith("watchglass.capture.keras")]:
        monkeypatch.delitem(sys.modules, name)
    for cached in (frameworks.member, frameworks._can_be_made):
        cached.cache_clear()
        monkeypatch.setattr(frameworks, cached.__name__, cached)
    monkeypatch.setattr(keras, "__version__", "3.5.0")
    try:
        for _ in range(2):
            assert FRAMEWORKS["keras"] not in list(frameworks.usable("loop"))
            assert FRAMEWORKS["tensorflow"] in list(frameworks.usable("loop"))
        warnings = [each.getMessage() for each in caplog.records if "Keras 3.5.0 is not watched" in each.getMessage()]
        assert len(warnings) == 1
    finally:
        frameworks._can_be_made.cache_clear()
