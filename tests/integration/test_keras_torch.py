"""Keras on PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import watchglass
from keras_suite import KerasSuite, Model, data
from watchglass import Mode
from watchglass.capture import Hook, attach, loop
from watchglass.records import facts

pytestmark = [
    pytest.mark.slow, pytest.mark.own_process,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]  # fmt: skip


class TestKeras(KerasSuite):
    backend = "torch"

    def test_a_loop_of_the_script_has_one_model_with_the_names_of_keras(
        self, build: Callable[..., Model], tmp_path: Path
    ) -> None:
        """The model is trained by PyTorch's optimizer, which also gets the averages of the normalization."""
        import torch

        inputs, labels = map(torch.as_tensor, data(64))
        with Hook(tmp_path / "run", save_interval=1, strict=True) as hook:
            attach(hook.port, loop("keras"))
            model = build()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in range(0, 64, 16):
                optimizer.zero_grad()
                outputs = model(inputs[batch : batch + 16], training=True)
                torch.nn.functional.cross_entropy(outputs, labels[batch : batch + 16].long()).backward()
                optimizer.step()
        run = watchglass.open_run(tmp_path / "run")
        assert run.steps() == [0, 1, 2, 3]
        assert {"dense.kernel", "gradient/dense_1.kernel", "dense.output"} <= set(run.tensor_names())
        assert not any("model_" in name or "torch_params" in name for name in run.tensor_names())
        held = [each.of_stepped for each in run.facts(facts.Membership)]
        assert [each.foreign for each in held if each is not None] == [0]

    def test_calls_outside_of_functions_are_no_steps(
        self, build: Callable[..., Model], keras: Any, tmp_path: Path
    ) -> None:
        inputs, labels = data(32)
        with Hook(tmp_path / "run", save_interval=1, strict=True) as hook:
            attach(hook.port, loop("keras"))
            model = build()
            model(inputs[:2])
            model.fit(inputs, labels, batch_size=8, verbose=0)
            keras.Sequential(model.layers[:1])(inputs[:2])
        run = watchglass.open_run(tmp_path / "run")
        assert run.steps() == [0, 1, 2, 3]
        assert run.steps(Mode.EVAL) == run.steps(Mode.PREDICT) == []
        assert not any("model_" in name for name in run.tensor_names())

    def test_weights_take_turns_where_copies_have_too_little_memory(
        self, build: Callable[..., Model], tmp_path: Path
    ) -> None:
        inputs, labels = data(48)
        model = build()
        largest = 4 * 6 * 8
        with watchglass.watch(
            model, run=tmp_path / "run", save_interval=1, strict=True, capture_memory_bytes=largest + 100
        ):
            model.fit(inputs, labels, batch_size=8, verbose=0)
        run = watchglass.open_run(tmp_path / "run")
        steps = {
            name: run.tensor(f"update/{name}").reductions("mean")[0].tolist()
            for name in ("dense.kernel", "dense_1.kernel")
        }
        assert all(0 < len(each) < 6 for each in steps.values())
        assert run.tensor("gradient/dense.kernel").reductions("mean")[0].tolist() == list(range(6))

    def test_a_gradient_that_is_overwritten_in_the_step_is_left_out(self, keras: Any, tmp_path: Path) -> None:
        class Twice(keras.Model):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(1)

            def call(self, inputs: Any) -> Any:
                return self.second(self.first(inputs))

            def train_step(self, data: Any) -> dict[str, Any]:
                self.zero_grad()
                loss = keras.ops.mean(self(data[0]) ** 2)
                loss.backward(retain_graph=True)
                weights = self.first.trainable_weights
                self.optimizer.apply([each.value.grad for each in self.trainable_weights], self.trainable_weights)
                weights[0].value.grad.zero_()
                return {"loss": loss}

        inputs, _ = data(16)
        model = Twice()
        model.compile(keras.optimizers.SGD(0.0))
        with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
            losses = model.fit(inputs, np.zeros(16), batch_size=8, epochs=2, verbose=0).history["loss"]
        assert np.isfinite(losses).all()
        names = watchglass.open_run(tmp_path / "run").tensor_names()
        assert "gradient/dense_1.kernel" in names
        assert "gradient/dense.kernel" not in names

    @pytest.mark.filterwarnings("ignore")  # PyTorch's compiler warns of its own dependencies
    def test_a_compiled_step_has_its_losses_recorded_alone(
        self, keras: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torch

        # Traced as ever; the machine code would take minutes to make.
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
        inputs, labels = data(64)

        def build() -> Model:
            keras.utils.set_random_seed(0)
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse", jit_compile=True)
            return model

        def train(model: Model) -> list[Any]:
            losses = model.fit(inputs, labels, batch_size=16, epochs=2, verbose=0).history["loss"]
            return [*losses, *(each.tobytes() for each in model.get_weights())]

        bare, model = train(build()), build()
        with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
            watched = train(model)
        assert watched == bare
        run = watchglass.open_run(tmp_path / "run")
        assert run.scalars("loss")[0].tolist() == list(range(8))
        assert set(run.tensor_names()) == {"loss", "learning_rate", "logged/loss"}
        said = [each for each in run.facts() if each.kind == "not_capturable"]
        assert [each.data["modules"] for each in said] == [["Sequential.train_step"]]
        assert "its compiler makes other numbers" in said[0].source
