"""What holds for Keras under each backend; a file for each one makes its tests of it, in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import watchglass
from watchglass import Mode, Role
from watchglass.records import facts

#: Due never, at each third step, at each step.
INTERVALS = (10**6, 3, 1)
Model = Any


def data(samples: int = 75) -> tuple[Any, Any]:
    """Rows with a class that can be learned from them."""
    random = np.random.default_rng(0)
    inputs = random.random((samples, 6)).astype("float32")
    return inputs, (inputs.sum(1) > 3).astype("int32")


class KerasSuite:
    """The tests.

    Attributes:
        backend: The backend of the process.
    """

    backend: ClassVar[str]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def keras(cls) -> Any:
        """Keras, with this backend; the process has it to its end."""
        backend = cls.backend
        os.environ.update(KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
        pytest.importorskip(backend, reason=f"{backend} is not installed")
        keras = pytest.importorskip("keras", reason="Keras is not installed")
        assert keras.backend.backend() == backend
        return keras

    @pytest.fixture(autouse=True)
    def _nothing_left(self, keras: Any) -> Iterator[None]:
        classes = keras.Model, keras.Layer, keras.losses.Loss, keras.metrics.Mean, keras.callbacks.CallbackList
        before = [dict(vars(each)) for each in classes]
        yield
        assert [dict(vars(each)) for each in classes] == before

    @pytest.fixture
    def build(self, keras: Any) -> Callable[..., Model]:
        """Builds the same model each time, with the same random numbers ahead of it."""

        def build(**options: Any) -> Model:
            keras.utils.set_random_seed(0)
            layers = keras.layers
            model = keras.Sequential(
                [
                    layers.Input((6,)), layers.Dense(8, activation="relu"), layers.BatchNormalization(),
                    layers.Dropout(0.2), layers.Dense(2),
                ]
            )  # fmt: skip
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            settings = {"optimizer": keras.optimizers.Adam(0.01), "loss": loss, "metrics": ["accuracy"], **options}
            model.compile(**settings)
            return model

        return build

    @pytest.mark.parametrize("interval", INTERVALS)
    def test_watched_training_is_bit_equal(self, build: Callable[..., Model], tmp_path: Path, interval: int) -> None:
        inputs, labels = data()

        def train(model: Model) -> tuple[Any, Any]:
            history = model.fit(inputs, labels, batch_size=16, epochs=3, validation_split=0.2, verbose=0).history
            return history, model.get_weights()

        bare = train(build())
        model = build()
        with watchglass.watch(model, run=tmp_path / "run", save_interval=interval, strict=True):
            watched = train(model)
        assert watched[0] == bare[0]
        assert all(np.array_equal(one, other) for one, other in zip(watched[1], bare[1], strict=True))

    def test_losses_are_those_of_the_batches(self, build: Callable[..., Model], tmp_path: Path) -> None:
        inputs, labels = data()
        batches = [slice(begin, begin + 16) for begin in range(0, 75, 16)]  # the last one is smaller
        bare = build()
        losses = [
            bare.train_on_batch(inputs[batch], labels[batch], return_dict=True)["loss"]
            for _ in range(3)
            for batch in batches
        ]
        model = build()
        with watchglass.watch(model, run=tmp_path / "run", save_interval=4, strict=True):
            model.fit(inputs, labels, batch_size=16, epochs=3, shuffle=False, verbose=0)
        steps, recorded = watchglass.open_run(tmp_path / "run").scalars("loss")
        assert steps.tolist() == list(range(15))
        assert np.allclose(recorded, losses, rtol=1e-5)

    def test_due_steps_have_the_tensors_of_the_model(self, build: Callable[..., Model], tmp_path: Path) -> None:
        inputs, labels = data()
        model = build()
        with watchglass.watch(
            model,
            run=tmp_path / "run",
            save_interval=5,
            strict=True,
            collections=["weights", "biases", "gradients", "updates", "layers"],
        ):
            model.fit(inputs, labels, batch_size=16, epochs=2, validation_split=0.2, verbose=0)
        run = watchglass.open_run(tmp_path / "run")
        assert run.steps() == list(range(8))
        for name in ("dense.kernel", "gradient/dense.kernel", "update/dense_1.kernel", "dense.output", "dense_1.bias"):
            assert run.tensor(name).reductions("mean")[0].tolist() == [0, 5], name
        rows = {info.name: info for info in run.worker().tables.catalog}
        assert rows["dense.kernel"].role is Role.WEIGHT
        assert rows["dense.kernel"].unit_axis == 1
        assert rows["learning_rate"].role is Role.METRIC
        assert run.scalars("learning_rate")[1] == pytest.approx([0.01] * 8)
        assert len(run.scalars("loss", mode=Mode.EVAL)[0]) == 2
        kinds = run.facts(facts.ModelDescription)[0].module_kinds or {}
        assert kinds["batch_normalization"] == "normalization"
        optimizer = run.facts(facts.OptimizerSettings)[0]
        assert (optimizer.type, optimizer.setting("lr")) == ("Adam", pytest.approx(0.01))
        assert [each.steps for each in run.facts(facts.PlannedSteps)] == [8]
