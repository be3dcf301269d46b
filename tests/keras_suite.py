"""What holds for Keras under each backend; a file for each one makes its tests of it, in a process of its own."""

from __future__ import annotations

import copy
import importlib
import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import watchglass
from frameworks.reduced_cases import reduce_everything, same_runs
from watchglass import Mode, Role
from watchglass.control import Commit, Stop
from watchglass.evaluate import judge_run
from watchglass.records import facts
from watchglass.run import count_steps

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
        with suppress(ImportError):
            importlib.import_module("tensorflow")  # Keras may import it later, which sets environment variables
        assert keras.backend.backend() == backend
        return keras

    @pytest.fixture(autouse=True)
    def _nothing_left(self, keras: Any) -> Iterator[None]:
        classes = keras.Model, keras.Layer, keras.losses.Loss, keras.metrics.Mean, keras.callbacks.CallbackList
        before = [dict(vars(each)) for each in classes]
        yield
        after = [dict(vars(each)) for each in classes]
        for old, new in zip(before, after, strict=True):
            changed = {name for name in {*old, *new} if new.get(name) is not old.get(name)}
            assert changed <= {"__annotations__"}  # copy.deepcopy reads these, which makes them

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

    def test_waits_for_data_are_a_phase_where_python_takes_the_batches(
        self, build: Callable[..., Model], keras: Any, tmp_path: Path
    ) -> None:
        inputs, labels = data(64)

        class Slow(keras.utils.PyDataset):  # type: ignore[misc]
            def __len__(self) -> int:
                return 4

            def __getitem__(self, index: int) -> Any:
                time.sleep(0.05)
                return inputs[16 * index : 16 * index + 16], labels[16 * index : 16 * index + 16]

        model = build()
        with watchglass.watch(model, run=tmp_path / "run", save_interval=10**6, strict=True, profiler=True):
            model.fit(Slow(), epochs=3, verbose=0)
        phases = watchglass.open_run(tmp_path / "run").phases()
        waited = phases["data"][4:].mean()
        if self.backend == "tensorflow":  # inside the compiled function
            assert waited < 0.05 <= phases["compute"][4:].mean() + waited
        else:
            assert 0.045 < waited < phases.seconds[4:].mean()

    def test_losses_are_those_of_the_batches(self, build: Callable[..., Model], tmp_path: Path) -> None:
        inputs, labels = data()
        batches = [slice(begin, begin + 16) for begin in range(0, 75, 16)]  # the last one is smaller
        bare, model = build(), build()
        for each in (bare, model):
            each.layers[2].rate = 0.0  # loops over batches draw other numbers than fit does under PyTorch
        losses = [
            bare.train_on_batch(inputs[batch], labels[batch], return_dict=True)["loss"]
            for _ in range(3)
            for batch in batches
        ]
        with watchglass.watch(model, run=tmp_path / "run", save_interval=4, strict=True):
            model.fit(inputs, labels, batch_size=16, epochs=3, shuffle=False, verbose=0)
        steps, recorded = watchglass.open_run(tmp_path / "run").scalars("loss")
        assert steps.tolist() == list(range(15))
        assert np.allclose(recorded, losses, rtol=1e-5)

    def test_due_steps_have_the_tensors_of_the_model(
        self, build: Callable[..., Model], keras: Any, tmp_path: Path
    ) -> None:
        inputs, labels = data()
        model = build(optimizer=keras.optimizers.SGD(0.1))
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
        decay = (
            run.tensor("update/dense.kernel").reductions("mean")[1]
            / run.tensor("gradient/dense.kernel").reductions("mean")[1]
        )
        assert decay == pytest.approx([-0.1, -0.1], rel=1e-3)
        assert rows["dense.kernel"].role is Role.WEIGHT
        assert rows["dense.kernel"].unit_axis == 1
        assert rows["learning_rate"].role is Role.METRIC
        assert run.scalars("learning_rate")[1] == pytest.approx([0.1] * 8)
        assert len(run.scalars("loss", mode=Mode.EVAL)[0]) == 2
        kinds = run.facts(facts.ModelDescription)[0].module_kinds or {}
        assert kinds["batch_normalization"] == "normalization"
        optimizer = run.facts(facts.OptimizerSettings)[0]
        assert (optimizer.type, optimizer.setting("lr")) == ("SGD", pytest.approx(0.1))
        assert [each.steps for each in run.facts(facts.PlannedSteps)] == [8]

    @pytest.mark.parametrize("interval", [1, 10**6])
    def test_each_epoch_has_its_metrics(self, build: Callable[..., Model], tmp_path: Path, interval: int) -> None:
        inputs, labels = data()
        model = build()
        with watchglass.watch(model, run=tmp_path / "run", save_interval=interval, strict=True):
            history = model.fit(inputs, labels, batch_size=16, epochs=3, validation_split=0.2, verbose=0).history
        run = watchglass.open_run(tmp_path / "run")
        for name in ("val_loss", "val_accuracy", "logged/loss", "logged/accuracy"):
            steps, values = run.scalars(name)
            assert steps.tolist() == [4, 8, 11], name
            assert values == pytest.approx(history[name.removeprefix("logged/")]), name

    @pytest.mark.parametrize("interval", [1, 10**6])
    def test_means_of_evaluations_are_those_of_keras(
        self, build: Callable[..., Model], tmp_path: Path, interval: int
    ) -> None:
        inputs, labels = data(40)  # the last batch of an evaluation has fewer samples
        model = build()
        with watchglass.watch(model, run=tmp_path / "run", save_interval=interval, strict=True):
            history = model.fit(
                inputs, labels, batch_size=16, epochs=3, validation_data=(inputs, labels), verbose=0
            ).history
        stretches = watchglass.open_run(tmp_path / "run").stretches(Mode.EVAL)
        for name in ("loss", "accuracy"):
            means = [{**each.training_means, **each.means}[name] for each in stretches]
            assert means == pytest.approx(history[f"val_{name}"], rel=1e-5), name
            assert all(each.covered.get(name, 1.0) == 1.0 for each in stretches), name

    @pytest.mark.parametrize("name", ["jit", "eager", "scaled", "averaged", "accumulated", "scheduled", "several"])
    def test_other_settings_are_bit_equal(self, keras: Any, tmp_path: Path, name: str) -> None:
        inputs, labels = data(64)
        layers, optimizers = keras.layers, keras.optimizers
        if name == "several" and self.backend == "torch":
            pytest.skip("Keras itself refuses steps_per_execution on PyTorch")
        if name == "jit" and self.backend == "torch":
            pytest.skip("PyTorch compiles a step for minutes, and then only losses are recorded")

        def build() -> Model:
            keras.utils.set_random_seed(0)
            policy = "mixed_float16" if name == "scaled" else "float32"
            model = keras.Sequential(
                [
                    layers.Input((6,)),
                    layers.Dense(8, activation="tanh", kernel_regularizer="l2", dtype=policy),
                    layers.Dense(2, activation="softmax", dtype=policy),
                ]
            )
            rate = optimizers.schedules.ExponentialDecay(0.05, 3, 0.5) if name == "scheduled" else 0.05
            optimizer: Any = optimizers.AdamW(
                rate, use_ema=name == "averaged", gradient_accumulation_steps=4 if name == "accumulated" else None,
                ema_overwrite_frequency=3 if name == "averaged" else None,
            )  # fmt: skip
            if name == "scaled":
                optimizer = optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**4)
            model.compile(
                optimizer, "sparse_categorical_crossentropy", jit_compile=name == "jit", run_eagerly=name == "eager",
                steps_per_execution=3 if name == "several" else 1,
            )  # fmt: skip
            return model

        def train(model: Model) -> tuple[Any, Any]:
            return model.fit(inputs, labels, batch_size=8, epochs=2, verbose=0).history, model.get_weights()

        bare = train(build())
        model = build()
        with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
            watched = train(model)
        assert watched[0] == bare[0]
        assert all(np.array_equal(one, other) for one, other in zip(watched[1], bare[1], strict=True))
        run = watchglass.open_run(tmp_path / "run")
        assert run.facts(facts.NotCapturable) == []
        steps = {"accumulated": [0, 1, 2, 3], "several": [0, 3, 6, 8, 11, 14]}.get(name, list(range(16)))
        assert run.tensor("gradient/dense_1.kernel").reductions("mean")[0].tolist() == steps
        if name == "scheduled":
            assert run.scalars("learning_rate")[1][:4] == pytest.approx([0.05 * 0.5 ** (n / 3) for n in range(4)])
        if name == "scaled":
            norms = run.scalars("gradient_norm")[1]
            assert norms.max() < 10  # they are divided by the scale

    @pytest.mark.parametrize(("endless", "interval"), [(False, 1), (False, 10**6), (True, 3)])
    def test_all_updates_of_an_execution_count(
        self, build: Callable[..., Model], keras: Any, tmp_path: Path, endless: bool, interval: int
    ) -> None:
        """Keras takes whole executions from data that does not end, also beyond the steps of an epoch."""
        if self.backend == "torch":
            pytest.skip("Keras itself refuses steps_per_execution on PyTorch")
        inputs, labels = data(64)

        def batches() -> Iterator[Any]:
            while True:
                yield from ((inputs[begin : begin + 8], labels[begin : begin + 8]) for begin in range(0, 64, 8))

        model = build(steps_per_execution=3, optimizer=keras.optimizers.SGD(0.1))
        with watchglass.watch(model, run=tmp_path / "run", save_interval=interval, strict=True):
            if endless:
                model.fit(batches(), steps_per_epoch=8, epochs=2, shuffle=False, verbose=0)
            else:
                model.fit(inputs, labels, batch_size=8, epochs=2, verbose=0)
        run = watchglass.open_run(tmp_path / "run")
        trained = int(model.optimizer.iterations.numpy())
        assert trained == (18 if endless else 16)
        assert run.steps()[-1] == trained - 1
        assert count_steps(run, Mode.TRAIN) == trained
        assert len(run.scalars("loss")[0]) == 6

    def test_each_output_has_its_loss(self, keras: Any, tmp_path: Path) -> None:
        inputs, labels = data(32)
        one = keras.Input((6,))
        hidden = keras.layers.Dense(4, activation="relu")(one)
        outputs = {name: keras.layers.Dense(1, name=name)(hidden) for name in ("first", "second")}
        model = keras.Model(one, outputs)
        model.compile("sgd", {"first": "mse", "second": "mae"}, loss_weights={"first": 1.0, "second": 0.5})
        targets = {"first": labels.astype("float32"), "second": inputs[:, 0]}
        with watchglass.watch(model, run=tmp_path / "run", save_interval=2, strict=True):
            model.fit(inputs, targets, batch_size=8, epochs=2, verbose=0)
        run = watchglass.open_run(tmp_path / "run")
        loss, first, second = (run.scalars(name)[1] for name in ("loss", "first/loss", "second/loss"))
        assert len(loss) == len(first) == len(second) == 8
        assert np.allclose(loss, first + 0.5 * second, rtol=1e-4)

    def test_nothing_is_saved_with_a_model(self, build: Callable[..., Model], keras: Any, tmp_path: Path) -> None:
        inputs, labels = data(32)
        model = build()
        with watchglass.watch(model, run=tmp_path / "run", save_interval=2, strict=True):
            model.fit(inputs, labels, batch_size=8, verbose=0)
            model.save(tmp_path / "model.keras")
            copies = [
                keras.saving.load_model(tmp_path / "model.keras"), pickle.loads(pickle.dumps(model)),  # noqa: S301
                copy.deepcopy(model),
            ]  # fmt: skip
            for each in copies:
                each.fit(inputs, labels, batch_size=8, verbose=0)
        assert b"watchglass" not in (tmp_path / "model.keras").read_bytes()
        assert watchglass.open_run(tmp_path / "run").steps() == [0, 1, 2, 3]
        assert "watchglass" not in repr(vars(model))

    @pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}, {"run_eagerly": True}])
    def test_rows_reduced_on_a_device_are_those_of_tensors(
        self, build: Callable[..., Model], options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arrays = {"jax": "jax.arrays.JaxArrays", "tensorflow": "tensorflow.arrays.TensorFlowArrays"}.get(self.backend)
        if arrays is None:
            pytest.skip("PyTorch has its own statistics of tensors on devices")
        module, _, name = f"watchglass.capture.{arrays}".rpartition(".")
        inputs, labels = data(64)

        def train(path: Path) -> Any:
            model = build(**options)
            with watchglass.watch(model, run=path, save_interval=2, strict=True, collections=["layers", "updates"]):
                model.fit(inputs, labels, batch_size=16, epochs=2, validation_split=0.25, verbose=0)
            return model.get_weights()

        expected = train(tmp_path / "host")
        reduce_everything(
            monkeypatch, getattr(importlib.import_module(module), name), "watchglass.capture.keras.collecting"
        )
        found = train(tmp_path / "device")
        assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
        same_runs(watchglass.open_run(tmp_path / "device"), watchglass.open_run(tmp_path / "host"))

    @pytest.mark.parametrize("fault", ["", "called_for_inference", "frozen"])
    def test_averages_that_nothing_updates_are_found(self, keras: Any, tmp_path: Path, fault: str) -> None:
        class Net(keras.Model):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.first = keras.layers.Dense(4, activation="relu")
                self.norm = keras.layers.BatchNormalization(momentum=0.9, trainable=fault != "frozen")
                self.drop, self.last = keras.layers.Dropout(0.1), keras.layers.Dense(1)

            def call(self, inputs: Any, training: bool = False) -> Any:
                normal = self.norm(self.first(inputs), training=training and fault != "called_for_inference")
                return self.last(self.drop(normal, training=training))  # else the whole model is in evaluation mode

        inputs, labels = data(64)
        model = Net()
        model.compile("sgd", "mse")
        with watchglass.watch(model, run=tmp_path / "run", save_interval=4, strict=True):
            model.fit(inputs, labels, batch_size=8, epochs=2, validation_data=(inputs, labels), verbose=0)
        run = watchglass.open_run(tmp_path / "run")
        fired = {finding.rule for finding in judge_run(run).findings}
        assert ("NormalizationNeverUpdated" in fired) is (fault == "called_for_inference")
        trained = [each for each in run.facts(facts.NormalizationStatistics) if each.model_training]
        assert bool(trained) is (fault != "frozen")
        for fact in trained:
            (state,) = fact.modules or ()
            assert (state.module, state.type) == ("batch_normalization", "BatchNormalization")
            assert (state.training, state.initial) == (not fault, bool(fault))
            assert state.momentum == pytest.approx(0.1)
            assert None not in (state.mean_off, state.variance_ratio)

    @pytest.mark.filterwarnings("ignore:Gradients do not exist")
    @pytest.mark.parametrize("cut", [False, True])
    def test_parameters_without_a_gradient_are_found(self, keras: Any, tmp_path: Path, cut: bool) -> None:
        class Net(keras.Model):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.kept = keras.layers.Dense(3, trainable=False)
                self.first, self.last = keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)

            def call(self, inputs: Any) -> Any:
                hidden = self.first(self.kept(inputs))
                return self.last(keras.ops.stop_gradient(hidden) if cut else hidden)

        inputs, labels = data(64)
        model = Net()
        model.compile("sgd", "mse")
        with watchglass.watch(model, run=tmp_path / "run", save_interval=2, strict=True):
            model.fit(inputs, labels, batch_size=8, epochs=3, verbose=0)
        run = watchglass.open_run(tmp_path / "run")
        (held,) = run.facts(facts.Membership)
        assert (held.trainable, held.of_stepped) == (4, facts.HeldParameters("SGD", 4))
        assert held.left_out == held.left_out_beside == facts.NamedParameters()
        found = cut and self.backend != "jax"  # where gradients that do not exist are zeros
        names = ("dense_1.kernel", "dense_1.bias") if found else ()
        assert held.without_gradient == facts.NamedParameters(len(names), names)
        fired = {finding.rule for finding in judge_run(run).findings}
        assert ("UnusedParameter" in fired) is found
        assert "OptimizerMissesParameter" not in fired

    def test_a_stop_ends_the_fit_as_keras_does(self, build: Callable[..., Model], keras: Any, tmp_path: Path) -> None:
        inputs, labels = data(64)
        ended: list[str] = []
        callback = keras.callbacks.LambdaCallback(on_train_end=lambda logs: ended.append("end"))
        model = build()
        with watchglass.watch(model, run=tmp_path / "run", strict=True) as hook:
            stop = keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, logs: epoch == 1 and hook.port.changes.add(Commit(11, Stop("enough")))
            )
            model.fit(inputs, labels, batch_size=8, epochs=5, callbacks=[callback, stop, callback], verbose=0)
        run = watchglass.open_run(tmp_path / "run")
        assert run.steps() == list(range(11))
        assert ended == ["end", "end"]
        assert len(model.history.epoch) == 2

    def test_a_second_model_has_names_of_its_own(self, build: Callable[..., Model], tmp_path: Path) -> None:
        inputs, labels = data(48)
        models = [build(), build()]
        with watchglass.watch(models[0], run=tmp_path / "run", save_interval=1, strict=True):
            watchglass.watch(models[1])
            for model in models:
                model.fit(inputs, labels, batch_size=16, verbose=0)
        run = watchglass.open_run(tmp_path / "run")
        assert run.scalars("loss")[0].tolist() == [0, 1, 2]
        assert run.scalars("model_2/loss")[0].tolist() == [3, 4, 5]
        for name in ("{}dense.kernel", "gradient/{}dense.kernel", "update/{}dense.kernel", "{}dense.output"):
            steps = [run.tensor(name.format(model)).reductions("count")[0].tolist() for model in ("", "model_2.")]
            assert steps == [[0, 1, 2], [3, 4, 5]], name
        assert [fact.model for fact in run.facts("optimizer")] == [None, 1]

    def test_several_fits_and_compilations_make_one_run(self, build: Callable[..., Model], tmp_path: Path) -> None:
        inputs, labels = data(32)
        model = build()
        model.fit(inputs, labels, batch_size=8, verbose=0)  # before it is watched
        with watchglass.watch(model, run=tmp_path / "run", save_interval=3, strict=True):
            model.fit(inputs, labels, batch_size=8, verbose=0)
            model.compile("sgd", model.loss)
            model.fit(inputs, labels, batch_size=8, epochs=3, initial_epoch=2, verbose=0)
            loss = model.train_on_batch(inputs, labels, return_dict=True)["loss"]
            model.evaluate(inputs, labels, batch_size=8, verbose=0)
            model.predict(inputs, batch_size=8, verbose=0)
        run = watchglass.open_run(tmp_path / "run")
        steps, losses = run.scalars("loss")
        assert len(steps) == 9
        assert losses[-1] == pytest.approx(float(loss))
        assert len(run.steps(Mode.EVAL)) == 4
        assert len(run.steps(Mode.PREDICT)) == 4
        assert [each.type for each in run.facts(facts.OptimizerSettings)] == ["Adam", "SGD"]
