"""A training run without an adapter: a loop over a NumPy network, recorded manually and evaluated by real rules."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.stops import commit_stop
from watchglass import Collection, Hook, Mode, Role, Run, TrainingStopped, open_run
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity

Array = NDArray[np.float64]


class Network:
    """Two layers and a squared error, with gradients written out."""

    def __init__(self, width: int = 16, scale: float = 1.0) -> None:
        random = np.random.default_rng(1)
        self.parameters = {
            "hidden.weight": random.normal(size=(1, width)) * scale,
            "hidden.bias": random.normal(size=width) * scale,
            "output.weight": random.normal(size=(width, 1)) / np.sqrt(width),
        }

    def loss(self, inputs: Array, targets: Array) -> float:
        with np.errstate(all="ignore"):
            return float(np.mean((self._hidden(inputs) @ self.parameters["output.weight"] - targets) ** 2))

    def gradients(self, inputs: Array, targets: Array) -> dict[str, Array]:
        hidden = self._hidden(inputs)
        error = 2 * (hidden @ self.parameters["output.weight"] - targets) / len(inputs)
        inner = (error @ self.parameters["output.weight"].T) * (1 - hidden**2)
        return {
            "hidden.weight": inputs.T @ inner,
            "hidden.bias": inner.sum(0),
            "output.weight": hidden.T @ error,
        }

    def _hidden(self, inputs: Array) -> Array:
        return np.asarray(np.tanh(inputs @ self.parameters["hidden.weight"] + self.parameters["hidden.bias"]))


def examples(count: int, noise: float, seed: int) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    inputs = random.uniform(-3, 3, size=(count, 1))
    return inputs, np.sin(inputs) + noise * random.normal(size=(count, 1))


def train(
    path: Path, steps: int = 400, *, rate: float = 0.05, noise: float = 0.1, count: int = 64, every: int = 20,
    network: Network | None = None, **settings: Any,
) -> Run:  # fmt: skip
    network, data, held_out = network or Network(), examples(count, noise, 2), examples(64, noise, 3)
    with Hook(path, **{"save_interval": 10, "strict": True, **settings}) as hook, np.errstate(all="ignore"):
        for number in range(steps):
            with hook.step("train") as step:
                hook.save_scalar("loss", network.loss(*data))
                for name, gradient in network.gradients(*data).items():
                    if step.due:
                        hook.save_tensor(f"gradient/{name}", gradient, "gradients")
                        hook.save_tensor(name, network.parameters[name], "weights")
                    network.parameters[name] -= rate * gradient
            if number % every == every - 1:
                with hook.step("eval"):
                    hook.save_scalar("loss", network.loss(*held_out))
    return open_run(path)


def findings(path: Path) -> dict[str, Severity]:
    rules = ("LossNotDecreasing", "LossIncreasing", "Overfit", "ExplodingTensor")
    return {finding.rule: finding.severity for finding in replay(path, [RuleSpec(rule) for rule in rules]).findings}


def test_everything_that_is_saved_is_there_at_its_step(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 40)
    network, data, held_out = Network(), examples(64, 0.1, 2), examples(64, 0.1, 3)
    assert run.finished
    assert run.steps() == list(range(40))
    assert run.steps(Mode.EVAL) == [0, 1]
    for number in range(40):
        assert run.tensor("loss").value(number) == network.loss(*data)
        for name, gradient in network.gradients(*data).items():
            if number % 10 == 0:
                norm = run.tensor(f"gradient/{name}").reduction(number, "l2")
                assert norm == pytest.approx(np.linalg.norm(gradient), rel=1e-12)
                assert run.tensor(name).reduction(number, "min") == network.parameters[name].min()
            network.parameters[name] -= 0.05 * gradient
        if number == 19:
            assert run.tensor("loss").value(0, Mode.EVAL) == network.loss(*held_out)
    assert run.tensor("gradient/hidden.weight").steps() == [0, 10, 20, 30]


def test_a_healthy_loop_has_no_findings(tmp_path: Path) -> None:
    train(tmp_path / "run")
    assert findings(tmp_path / "run") == {}


def test_a_loop_whose_steps_are_too_long_diverges(tmp_path: Path) -> None:
    train(tmp_path / "run", rate=3.0)
    assert findings(tmp_path / "run")["LossIncreasing"].rank >= Severity.WARNING.rank


def test_a_loop_that_does_not_learn_says_so(tmp_path: Path) -> None:
    train(tmp_path / "run", rate=0.0)
    assert findings(tmp_path / "run") == {"LossNotDecreasing": Severity.WARNING}


def test_a_loop_that_learns_its_few_examples_by_heart_overfits(tmp_path: Path) -> None:
    network = Network(width=128, scale=3.0)
    train(tmp_path / "run", 3000, network=network, count=10, noise=0.5, rate=0.01, every=50, save_interval=100)
    assert findings(tmp_path / "run") == {"Overfit": Severity.WARNING}


def test_a_value_that_is_not_finite_is_found_where_it_came_up(tmp_path: Path) -> None:
    class Broken(Network):
        calls = 0

        def gradients(self, inputs: Array, targets: Array) -> dict[str, Array]:
            found = super().gradients(inputs, targets)
            self.calls += 1
            if self.calls == 31:
                found["hidden.bias"][0] = np.nan
            return found

    run = train(tmp_path / "run", 60, network=Broken())
    assert findings(tmp_path / "run")["ExplodingTensor"] is Severity.ERROR
    assert run.tensor("gradient/hidden.bias").reduction(30, "nan") == 1


def test_whole_tensors_are_kept_where_a_collection_asks(tmp_path: Path) -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    whole = Collection("whole", include_regex=("^kept$",), save_raw=True)
    with Hook(tmp_path / "run", collections=[whole], save_interval=1, strict=True) as hook:
        for number in range(3):
            with hook.step("train"):
                hook.save_tensor("kept", value + number)
                hook.save_tensor("reduced", value)
            value = value.copy()
    run = open_run(tmp_path / "run")
    np.testing.assert_array_equal(run.tensor("kept").value(2), value + 2)
    assert not run.tensor("reduced").values()


def test_a_tensor_may_change_as_soon_as_it_has_been_saved(tmp_path: Path) -> None:
    value = np.zeros(4)
    whole = Collection("whole", include_regex=(".",), save_raw=True)
    with Hook(tmp_path / "run", collections=[whole], save_interval=1, strict=True) as hook:
        for number in range(3):
            with hook.step("train"):
                value[:] = number
                hook.save_tensor("value", value)
                value[:] = -1
    run = open_run(tmp_path / "run")
    assert [run.tensor("value").reduction(step, "max") for step in range(3)] == [0, 1, 2]
    assert [run.tensor("value").value(step).max() for step in range(3)] == [0, 1, 2]


def test_what_is_saved_between_steps_belongs_to_the_next_one(tmp_path: Path) -> None:
    with Hook(tmp_path / "run", strict=True) as hook:
        for number in range(3):
            hook.save_scalar("before", number)
            with hook.step("train"):
                hook.save_scalar("inside", number)
    run = open_run(tmp_path / "run")
    for name in ("before", "inside"):
        assert run.scalars(name)[0].tolist() == run.scalars(name)[1].tolist() == [0, 1, 2]


def test_a_stop_is_raised_before_the_next_training_step(tmp_path: Path) -> None:
    def loop(hook: Hook) -> None:
        for number in range(9):
            with hook.step("train"):
                done.append(number)
            if number == 2:
                commit_stop(tmp_path / "run", 4, hook)

    done: list[int] = []
    with Hook(tmp_path / "run", strict=True) as hook, pytest.raises(TrainingStopped):
        loop(hook)
    assert done == [0, 1, 2, 3]
    assert open_run(tmp_path / "run").worker().lifecycle[-1]["status"] == "stopped"


def test_an_evaluation_is_not_cut_off_by_a_stop(tmp_path: Path) -> None:
    with Hook(tmp_path / "run", strict=True) as hook:
        with hook.step("train"):
            pass
        commit_stop(tmp_path / "run", 1, hook)
        with hook.step("eval"):
            hook.save_scalar("loss", 1.0)
        with pytest.raises(TrainingStopped), hook.step("train"):
            pass
    assert open_run(tmp_path / "run").scalars("loss", Mode.EVAL)[1].tolist() == [1.0]


def test_an_evaluation_inside_a_training_step_is_a_step_of_its_own(tmp_path: Path) -> None:
    with Hook(tmp_path / "run", strict=True) as hook:
        for number in range(3):
            with hook.step("train"):
                hook.save_scalar("before", number)
                with hook.step("eval"):
                    hook.save_scalar("loss", 10 + number)
                hook.save_scalar("loss", number)
    run = open_run(tmp_path / "run")
    assert run.steps() == run.steps(Mode.EVAL) == [0, 1, 2]
    assert run.scalars("loss")[1].tolist() == run.scalars("before")[1].tolist() == [0, 1, 2]
    assert run.scalars("loss", Mode.EVAL)[1].tolist() == [10, 11, 12]


def test_under_a_built_in_collection_a_tensor_is_what_that_holds(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 20, save_interval=2)
    assert {run.tensor(name).info.role for name in run.tensor_names(regex="^gradient/")} == {Role.GRADIENT}
    assert run.tensor("hidden.weight").info.role is Role.WEIGHT
    assert run.tensor("hidden.weight").info.trainable
    status, *_ = replay(tmp_path / "run", [RuleSpec("VanishingGradient")]).statuses
    assert status.status.value == "NoIssuesFound"


def test_gradients_that_vanish_are_judged_in_any_loop(tmp_path: Path) -> None:
    class Faint(Network):
        def gradients(self, inputs: Array, targets: Array) -> dict[str, Array]:
            return {name: gradient * 1e-9 for name, gradient in super().gradients(inputs, targets).items()}

    found = []
    for name, network in (("sick", Faint()), ("healthy", Network())):
        train(tmp_path / name, 100, network=network)
        found.append([finding.rule for finding in replay(tmp_path / name, [RuleSpec("VanishingGradient")]).findings])
    assert found == [["VanishingGradient"], []]


@pytest.mark.parametrize(
    ("save", "value", "what"),
    [
        ("save_scalar", None, "a number"),
        ("save_scalar", "high", "a number"),
        ("save_scalar", np.ones(3), "a number"),
        ("save_tensor", object(), "an array of numbers"),
        ("save_tensor", ["a", "b"], "an array of numbers"),
        ("save_tensor", [[1, 2], [3]], "an array of numbers"),
    ],
)
def test_a_value_that_cannot_be_recorded_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, save: str, value: Any, what: str
) -> None:
    with caplog.at_level(logging.WARNING, "watchglass"), Hook(tmp_path / "run") as hook:
        for number in range(3):
            with hook.step("train"):
                getattr(hook, save)("odd", value)
                hook.save_scalar("good", number)
    (message,) = (record.getMessage() for record in caplog.records)
    assert "'odd'" in message
    assert what in message
    assert open_run(tmp_path / "run").scalars("good")[1].tolist() == [0, 1, 2]


def test_calls_of_another_thread_are_ignored(tmp_path: Path) -> None:
    with Hook(tmp_path / "run", strict=True) as hook, hook.step("train"):
        hook.save_scalar("ours", 1)
        other = threading.Thread(target=hook.save_scalar, args=("theirs", 1))
        other.start()
        other.join()
    assert open_run(tmp_path / "run").tensor_names() == ["ours"]


def test_a_closed_hook_lets_the_loop_run_on_and_keeps_nothing(tmp_path: Path) -> None:
    hook = Hook(tmp_path / "run", strict=True)
    for number in range(50):
        with hook.step("train") as step:
            assert step.due == (number < 2)
            hook.save_scalar("loss", number)
        if number == 1:
            hook.close()
            held = hook.port.cost.report()["peak_bytes"]
    assert open_run(tmp_path / "run").steps() == [0, 1]
    assert hook.port.cost.report()["peak_bytes"] == held, "no thread would ever write them"


def test_nothing_is_written_before_the_first_training_step(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with Hook(path, strict=True) as hook:
        with hook.step("eval"):
            hook.save_scalar("loss", 2.0)
        assert not path.exists()
        with hook.step("train"):
            hook.save_scalar("loss", 1.0)
    assert open_run(path).scalars("loss", Mode.EVAL)[1].tolist() == [2.0]
