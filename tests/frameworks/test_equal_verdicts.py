"""The same fault in the same training has the same first cause in each framework, and none has a warning without it."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGES = ("sklearn", "tensorflow", "keras", "jax", "flax", "optax")
if missing := [package for package in PACKAGES if find_spec(package) is None]:
    pytest.skip(f"not installed: {', '.join(missing)}", allow_module_level=True)
os.environ |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras  # noqa: E402, F401  # here: it sets environment variables
import torch  # noqa: E402

from frameworks.equal_trainings import FAULTS, HEALTHY, LOOPS, Toy, train_watched  # noqa: E402
from watchglass import open_run  # noqa: E402
from watchglass.records import Severity, Verdict  # noqa: E402

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

#: The first cause of each fault, and a rule that finds it.
CAUSES = {
    "rate too high": ("learning_rate_too_high", "WeightUpdateRatio"),
    "rate too low": ("learning_rate_too_low", "WeightUpdateRatio"),
    "rate of zero": ("learning_rate_zero", "LearningRateZero"),
    "random labels": ("nothing_to_learn", "NoBetterThanGuessing"),
    "softmax twice": ("softmax_applied_twice", "OutputActivationMismatch"),
    "dead units": ("dying_relu", "DeadRelu"),
    "layer left out": ("parameter_not_in_optimizer", "OptimizerMissesParameter"),
    "inputs not scaled": ("inputs_not_normalized", "InputNormalization"),
    "not shuffled": ("data_not_shuffled", "DataNotShuffled"),
}
#: Faults that a framework cannot have, with the reason.
IMPOSSIBLE = {("layer left out", "keras"): "fit gives the optimizer each variable that is trainable"}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # more are no help for so few numbers


def verdicts(toy: Toy, loops: list[str], folder: Path) -> dict[str, Verdict]:
    """The verdict of a training in each framework."""
    found = {}
    for loop in loops:
        train_watched(loop, toy, folder / loop)
        found[loop] = open_run(folder / loop).verdict()
    return found


# Of Keras, about logits that a softmax has made: the fault.
@pytest.mark.filterwarnings("ignore:.*from_logits:UserWarning")
@pytest.mark.parametrize("fault", FAULTS)
def test_the_same_fault_has_the_same_first_cause(fault: str, tmp_path: Path) -> None:
    cause, rule = CAUSES[fault]
    loops = [loop for loop in LOOPS if (fault, loop) not in IMPOSSIBLE]
    for loop, verdict in verdicts(FAULTS[fault], loops, tmp_path).items():
        causes = [each.causes[0].cause.id for each in verdict.diagnoses]
        assert causes[:1] == [cause], f"{loop}: {causes}"
        assert rule in {finding.rule for finding in verdict.findings}, loop


@pytest.mark.parametrize("held", ["all", "frozen"])
def test_a_healthy_training_has_no_warning(held: str, tmp_path: Path) -> None:
    """Nor has one in which a layer is frozen on purpose, as its framework has it."""
    for loop, verdict in verdicts(replace(HEALTHY, held=held), list(LOOPS), tmp_path).items():
        assert [each.message for each in verdict.findings if each.severity is not Severity.INFO] == [], loop
