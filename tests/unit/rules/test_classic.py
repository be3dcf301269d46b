"""Each classic rule fires on its disease and is silent on the healthy twin; and passes the suite of all rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from trainings import ALWAYS, MODULES, constant, training, with_evaluations
from watchglass.diagnose import diagnose
from watchglass.evaluate import replay
from watchglass.records import ModuleKind, Severity
from watchglass.rules import default_rules, find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def _diverging(step: int) -> float:
    return 2.3 if step < 20 else 2.3 * 3.0 ** (step - 20) if step < 30 else float("nan")


class TestExplodingTensor(RuleSuite):
    rule = find_rule("ExplodingTensor")
    modules = MODULES
    severity = Severity.ERROR

    def sick(self) -> Sequence[Step]:
        return training(60, loss=_diverging)

    def healthy(self) -> Sequence[Step]:
        # A scaler that looks for its scale, and masks of negative infinity, are how things are meant to work.
        steps = training(60, due=ALWAYS)
        facts = {"step_skipped": {}, "nonfinite_gradients": {"tensors": ["gradient/stem.weight"]}}
        steps[2] = Step(scalars={"loss": 2.0, "gradient_norm": float("inf")}, facts=facts)
        mask = np.where(np.eye(4) > 0, 0, -np.inf).astype(np.float32)
        steps[5] = Step(scalars={"loss": 2.0}, statistics={"mask.output": mask})
        return steps


class TestExplodingGradient(RuleSuite):
    rule = find_rule("ExplodingGradient")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(
            80,
            loss=lambda n: 2.3 if n < 40 else 2.3 * 2.0 ** (n - 40),
            gradient=lambda n, i: 1e-2 * 3.0 ** max(0, n - 40),
        )

    def healthy(self) -> Sequence[Step]:
        # The gradient grows a hundredfold while the loss falls: a training that leaves a plateau. And a spike.
        return training(
            200, gradient=lambda n, i: 1e-2 * (1 + n if n < 100 else 100) * (1000 if n == 150 else 1), noise=0.3
        )


class TestVanishingGradient(RuleSuite):
    rule = find_rule("VanishingGradient")
    modules: ClassVar = {**MODULES, "bend": ModuleKind.SATURATING, "curve": ModuleKind.SATURATING}

    def sick(self) -> Sequence[Step]:
        return training(60, loss=constant_loss(2.3), gradient=lambda n, i: 1e-2 * 1e-3 ** (2 - i))

    def healthy(self) -> Sequence[Step]:
        # A modest slope over the layers, and everything small at convergence, the first layer most of all.
        return training(600, gradient=lambda n, i: 1e-2 * 0.1 ** (2 - i) * 0.98**n)


class TestDeadRelu(RuleSuite):
    rule = find_rule("DeadRelu")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(40, dead=lambda n, i: 0.95 if i == 1 else 0.0)

    def healthy(self) -> Sequence[Step]:
        return training(400, dead=lambda n, i: 0.4)


class TestPoorWeightInitialization(RuleSuite):
    rule = find_rule("PoorWeightInitialization")
    modules = MODULES
    severity = Severity.ERROR

    def sick(self) -> Sequence[Step]:
        return training(20, facts={0: {"initialization": _initialization(same=("stem", "middle", "readout"))}})

    def healthy(self) -> Sequence[Step]:
        # A last layer of zeros is on purpose.
        return training(20, facts={0: {"initialization": _initialization(same=("readout",))}})


class TestWeightUpdateRatio(RuleSuite):
    rule = find_rule("WeightUpdateRatio")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(20, ratio=constant(30.0))

    def healthy(self) -> Sequence[Step]:
        # Warm-up from nothing, then a cosine schedule down to nothing; one layer starts from zero.
        def rate(step: int) -> float:
            return 0.1 * step / 100 if step < 100 else 0.05 * (1 + math.cos(math.pi * (step - 100) / 900))

        return training(1000, rate=rate, ratio=lambda n, i: 0.02 * rate(n) * (100 if i == 2 and n < 4 else 1))


class TestWeightUpdateRatioTooSmall(TestWeightUpdateRatio):
    def sick(self) -> Sequence[Step]:
        return training(600, ratio=constant(1e-7), loss=constant_loss(2.3))


class TestUnchangedTensor(RuleSuite):
    rule = find_rule("UnchangedTensor")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(60, ratio=lambda n, i: 0.0 if i == 0 else 1e-3)

    def healthy(self) -> Sequence[Step]:
        # A layer that moved and then rests (dead, or the end of a schedule) is another matter.
        return training(600, ratio=lambda n, i: 0.0 if n > 5 and i == 0 else 1e-3)


class TestLossNotDecreasing(RuleSuite):
    rule = find_rule("LossNotDecreasing")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(400, loss=constant_loss(2.3))

    def healthy(self) -> Sequence[Step]:
        # Falls, then stays at its noisy floor for long.
        return training(1000, noise=0.5, loss=lambda n: 2.3 * 0.98**n + 0.01)


class TestLossRises(TestLossNotDecreasing):
    def sick(self) -> Sequence[Step]:
        return training(600, loss=lambda n: 2.3 * 0.98**n if n < 200 else 1.5)


class TestLossDiverges(TestLossNotDecreasing):
    def sick(self) -> Sequence[Step]:
        return training(6, loss=lambda n: 2.3 * 10.0**n)


class TestLossDivergesForGood(TestLossNotDecreasing):
    severity = Severity.ERROR

    def sick(self) -> Sequence[Step]:
        return training(40, loss=lambda n: 2.3 if n < 10 else 100.0)


class TestOverfit(RuleSuite):
    rule = find_rule("Overfit")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return with_evaluations(training(400), lambda n: 0.8 if n < 100 else 0.8 + (n - 100) / 400)

    def healthy(self) -> Sequence[Step]:
        # A gap that stays, with some noise; the training loss goes on falling.
        return with_evaluations(training(800), lambda n: 0.3 + 2 * 0.97**n + 0.01 * (n % 3))


def constant_loss(value: float):
    return lambda step: value


def _initialization(same: tuple[str, ...]) -> dict[str, object]:
    rows = {
        f"{name}.weight": {
            "identical_rows": 1.0 if name in same else 1 / 16, "constant": name in same, "std": 0.1, "fan_in": 16,
            "fan_out": 16, "shape": [16, 16],
        }
        for name in ("stem", "middle", "readout")
    }  # fmt: skip
    return {"tensors": rows}


@pytest.mark.parametrize("due", ["sparse", "always"])
def test_a_healthy_training_has_no_findings(run_path: Path, due: str) -> None:
    def rate(step: int) -> float:
        return 0.1 * step / 50 if step < 50 else 0.05 * (1 + math.cos(math.pi * (step - 50) / 1450))

    steps = training(
        1500,
        loss=lambda n: 2.3 * math.exp(-n / 150) + 0.01,
        gradient=lambda n, i: 1e-2 * math.exp(-n / 200) * (1 + i),
        ratio=lambda n, i: 0.03 * rate(n),
        rate=rate,
        noise=0.4,
        dead=lambda n, i: 0.25,
        facts={0: {"initialization": _initialization(()), "optimizer": {"type": "SGD", "groups": [{"lr": 0.1}]}}},
        **({"due": ALWAYS} if due == "always" else {}),
    )
    run = build_run(run_path, with_evaluations(steps, lambda n: 0.1 + 2.2 * math.exp(-n / 150), 100), modules=MODULES)
    evaluation = replay(run, default_rules())
    assert [f.message for f in evaluation.findings if f.severity is not Severity.INFO] == []
    assert {status.status.value for status in evaluation.statuses} == {"NoIssuesFound"}
    assert diagnose(evaluation.findings) == ()


def test_the_first_bad_module_is_named_without_help(run_path: Path) -> None:
    def poison(step: int, arrays: dict[str, np.ndarray]) -> None:
        if step >= 5:
            for name in ("middle.output", "curve.output", "readout.output"):
                arrays[name][0, 0] = np.nan

    steps = training(10, loss=lambda n: 2.3 if n < 5 else float("nan"), change=poison, due=ALWAYS)
    (finding,) = replay(build_run(run_path, steps, modules=MODULES), default_rules()[:1]).findings
    assert (finding.step, finding.last_step, finding.count) == (5, 9, 5)
    assert finding.tensors[0] == "middle.output"
    assert finding.evidence["where"] == "forward"
    assert "overflow_in_module" in finding.causes


def test_what_capture_found_out_wins(run_path: Path) -> None:
    fact = {
        "level": "rerun", "where": "input", "module": "stem", "module_type": "Linear", "tensor": "stem.input.0",
        "sentence": "the batch holds NaN.", "refused": "",
    }  # fmt: skip
    steps = training(10, loss=lambda n: 2.3 if n < 5 else float("nan"), facts={5: {"first_bad_module": fact}})
    (finding,) = replay(build_run(run_path, steps, modules=MODULES), default_rules()[:1]).findings
    assert finding.message == "the loss became NaN at step 5: the batch holds NaN"
    assert finding.causes[0] == "bad_data"


def test_weights_that_were_bad_before_are_never_blamed_on_the_first_layer(run_path: Path) -> None:
    def poison(step: int, arrays: dict[str, np.ndarray]) -> None:
        if step >= 5:
            for name in arrays:
                arrays[name][0] = np.nan

    steps = training(10, loss=lambda n: 2.3 if n < 5 else float("nan"), change=poison, due=ALWAYS)
    (finding,) = replay(build_run(run_path, steps, modules=MODULES), default_rules()[:1]).findings
    assert finding.evidence["where"] == "weights"
    assert finding.causes[0] == "poisoned_weights"


def _stack(derivative: float, *, rectified: bool = False) -> list[Step]:
    """Six layers of unit gain with activations that are functions, of a given derivative, and so no modules."""
    random = np.random.default_rng(3)
    names = [f"part{i}" for i in range(6)]
    steps = []
    for _ in range(10):
        arrays = {}
        for i, name in enumerate(names):
            arrays[f"{name}.weight"] = random.normal(size=(32, 32)) / np.sqrt(32)
            arrays[f"gradient/{name}.weight"] = random.normal(size=(32, 32)) * derivative ** (5 - i)
        units = {f"{name}.input.0": [False] * 32 for name in names[1:]} if rectified else {}
        small = {name: array.astype(np.float32) for name, array in arrays.items()}
        steps.append(Step(scalars={"loss": 2.3, "learning_rate": 0.1}, statistics=small, units=units))
    return steps


@pytest.mark.parametrize(
    ("derivative", "rectified", "cause"),
    [
        (0.2, False, "deep_saturating_activations"),
        (0.2, True, "vanishing_over_depth"),
    ],
)
def test_functional_sigmoids_show_in_what_they_take_from_the_gradient(
    run_path: Path, derivative: float, rectified: bool, cause: str
) -> None:
    modules = {f"part{i}": ModuleKind.LINEAR for i in range(6)}
    run = build_run(run_path, _stack(derivative, rectified=rectified), modules=modules)
    (diagnosis,) = diagnose(replay(run).findings)
    assert diagnosis.causes[0].cause.id == cause


def test_rounding_behind_dead_units_is_no_bad_scale(run_path: Path) -> None:
    constant_output = np.full((8, 8), 0.1, dtype=np.float32) + np.float32(1e-8)
    steps = [
        Step(
            scalars={"loss": 2.3},
            statistics={"stem.output": np.random.default_rng(0).normal(size=(8, 8)), "readout.output": constant_output},
            facts={"initialization": _initialization(())},
        )
    ]
    assert replay(build_run(run_path, steps, modules=MODULES)).findings == ()
