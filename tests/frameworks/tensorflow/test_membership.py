"""Which parameters a loop with a tape gives to its optimizer, and which of them have a gradient."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from watchglass.evaluate import judge_run
from watchglass.records import facts

pytestmark = [
    pytest.mark.own_process, pytest.mark.slow, pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning"),
]  # fmt: skip

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras = pytest.importorskip("keras", reason="Keras is not installed")
FOUND = {
    "": set[str](), "cut": {"UnusedParameter"}, "missed": {"OptimizerMissesParameter"}, "head": set[str](),
    "frozen": set[str](),
}  # fmt: skip


def train(training: Any, steps: int, *, fault: str, compiled: bool) -> None:
    """A graph may be cut, gradients given to nobody or asked for the head alone, or the first layer be frozen."""
    from tensorflow_training import batches

    class Net(keras.Model):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)

        def call(self, inputs: Any) -> Any:
            hidden = self.first(inputs)
            return self.last(tf.stop_gradient(hidden) if fault == "cut" else hidden)

    keras.utils.set_random_seed(0)
    model, optimizer = Net(), keras.optimizers.Adam(0.01)
    model(next(batches(1))[0])
    model.first.trainable = fault != "frozen"
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def update(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs))
        variables = (model.last if fault == "head" else model).trainable_variables
        pairs = list(zip(tape.gradient(loss, variables), variables, strict=True))
        optimizer.apply_gradients(pairs[2:] if fault == "missed" else pairs)
        return loss

    step = tf.function(update) if compiled else update
    for batch in batches(steps):
        training.losses.append(float(step(*batch)))
    training.variables = [each.value for each in model.variables + optimizer.variables]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("fault", FOUND)
def test_parameters_that_are_not_trained_are_found(fault: str, compiled: bool, tmp_path: Path) -> None:
    from tensorflow_training import bare, watched

    expected = bare(train, 20, fault=fault, compiled=compiled)
    training, run = watched(tmp_path / "run", train, 20, 2, fault=fault, compiled=compiled)
    assert training.bits() == expected.bits()
    (held,) = run.facts(facts.Membership)
    first, none = facts.NamedParameters(2, ("dense.kernel", "dense.bias")), facts.NamedParameters()
    assert held.trainable == (2 if fault == "frozen" else 4)
    assert held.of_stepped == facts.HeldParameters("Adam", 2 if fault in ("missed", "head", "frozen") else 4)
    assert held.left_out == (first if fault in ("missed", "head") else none)
    assert held.left_out_beside == (first if fault == "missed" else none)
    assert held.without_gradient == (first if fault == "cut" else none)
    fired = {finding.rule for finding in judge_run(run).findings}
    assert fired & {"UnusedParameter", "OptimizerMissesParameter"} == FOUND[fault]
    assert bool(fired) is bool(FOUND[fault])  # a layer that is left as it is, is healthy
