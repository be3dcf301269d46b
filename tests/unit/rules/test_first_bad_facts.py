"""What a rule makes of the facts about the first bad module, by their level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from synthetic_steps import MODULES, training
from watchglass.evaluate import replay
from watchglass.records import Finding
from watchglass.rules import default_rules
from watchglass.testing import build_run

FLAGS = {
    "level": "flags", "where": "loss", "module": "", "module_type": "", "tensor": "loss",
    "sentence": "the loss is not finite", "refused": "the model is compiled",
}  # fmt: skip
ARMED = {
    "level": "next_steps", "where": "forward", "module": "curve", "module_type": "Tanh", "tensor": "curve.output",
    "sentence": "curve (Tanh) turned finite inputs into values that are not finite", "refused": "", "step": 7,
}  # fmt: skip
WEIGHTS = {
    "level": "next_steps", "where": "weights", "module": "stem", "module_type": "Linear", "tensor": "stem.weight",
    "sentence": "stem.weight is not finite since the update of step 5 by SGD",
    "refused": "the update that followed the failure overwrote the weights",
}  # fmt: skip


def findings(path: Path, facts: dict[int, Any]) -> list[Finding]:
    steps = training(10, loss=lambda n: 2.3 if n < 5 else float("nan"), facts=facts, due=lambda n: n == 0)
    return list(replay(build_run(path, steps, modules=MODULES), default_rules()[:1]).findings)


def test_a_refused_loss_says_no_more_than_that_the_loss_is_bad(run_path: Path) -> None:
    (finding,) = findings(run_path, {5: {"first_bad_module": FLAGS}})
    assert finding.evidence["where"] == ""
    # That all modules are finite is something else, and somebody must have seen it.
    (known,) = findings(run_path.with_name("known"), {5: {"first_bad_module": {**FLAGS, "refused": ""}}})
    assert known.evidence["where"] == "loss"


def test_a_sentence_says_that_compiled_code_hides_the_operation(run_path: Path) -> None:
    (finding,) = findings(run_path, {5: {"first_bad_module": FLAGS}})
    assert finding.message.endswith("; the model is compiled, which hides the operation that made it so")
    other = {**FLAGS, "refused": "an input was changed after the forward"}
    (silent,) = findings(run_path.with_name("other"), {5: {"first_bad_module": other}})
    assert "compiled" not in silent.message


def test_a_module_that_is_named_late_is_a_finding_of_its_own(run_path: Path) -> None:
    first, second = findings(run_path, {5: {"first_bad_module": FLAGS}, 7: {"first_bad_module": ARMED}})
    assert (first.step, second.step) == (5, 7)
    assert second.evidence["module"] == "curve"
    assert "curve (Tanh) turned finite inputs" in second.message


@pytest.mark.parametrize("where", [5, 6])
def test_weights_that_the_failure_has_overwritten_are_no_cause(run_path: Path, where: int) -> None:
    (finding,) = findings(run_path, {5: {"first_bad_module": FLAGS}, where: {"first_bad_module": WEIGHTS}})
    assert finding.evidence["where"] != "weights"
    assert "stem.weight" not in finding.message


def test_a_gradient_that_the_loss_sends_back_is_not_the_loss(run_path: Path) -> None:
    """The search found the forward and the loss finite."""
    sent_back = {
        "level": "re-run", "where": "loss", "module": "", "module_type": "", "tensor": "loss", "refused": "",
        "sentence": "the gradient that the loss sends back is already not finite",
    }  # fmt: skip
    steps = training(10, loss=lambda n: 1.0566, facts={5: {"first_bad_module": sent_back}}, due=lambda n: n == 0)
    (finding,) = replay(build_run(run_path, steps, modules=MODULES), default_rules()[:1]).findings
    assert finding.message == (
        "a gradient became NaN or infinite at step 5: the gradient that the loss sends back is already not finite"
    )
    assert finding.symptoms[0] == "nonfinite_backward"
    assert finding.value is None


def test_a_search_that_was_refused_beside_a_finite_loss_is_no_finding(run_path: Path) -> None:
    """As where a loss overflows that is multiplied by the scale of a scaler."""
    steps = training(10, loss=lambda n: 1.0566, facts={5: {"first_bad_module": FLAGS}}, due=lambda n: n == 0)
    assert not replay(build_run(run_path, steps, modules=MODULES), default_rules()[:1]).findings


@pytest.mark.parametrize(("bad", "word"), [(float("inf"), "infinite"), (float("nan"), "NaN")])
def test_infinity_is_not_called_nan(run_path: Path, bad: float, word: str) -> None:
    steps = training(10, gradient=lambda n, i: bad if n >= 5 else 1e-2)
    found = replay(build_run(run_path, steps, modules=MODULES), default_rules()[:1]).findings
    (finding,) = (each for each in found if each.severity.value == "error")
    assert f" became {word} at step 5" in finding.message
    assert repr(finding.value) == repr(bad)
