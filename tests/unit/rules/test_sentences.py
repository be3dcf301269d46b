"""What findings say is so: their numbers are those of the run, and one thing is not spoken of as of several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding, ModuleKind, Role, TensorInfo
from watchglass.rules import built_in_knowledge, find_rule, symptoms_of
from watchglass.testing import Step, build_run

LAYERS = ("first", "second", "third")
MODULES = dict.fromkeys(LAYERS, ModuleKind.LINEAR)
RNG = np.random.default_rng(3)
WEIGHTS = {name: RNG.normal(size=(8, 4)).astype(np.float32) for name in LAYERS}


def found(path: Path, rule: str, steps: Sequence[Step], **parameters: object) -> list[Finding]:
    return list(replay(build_run(path, steps, modules=MODULES), [RuleSpec(rule, parameters)]).findings)


def step(
    layers: Sequence[str],
    *,
    loss: float | None = 2.0,
    moved: Mapping[str, float] | None = None,
    gradient: float = 1e-2,
    update: Mapping[str, float] | None = None,
) -> Step:
    statistics: dict[str, NDArray[np.float32]] = {}
    for name in layers:
        weight = WEIGHTS[name] + np.float32((moved or {}).get(name, 0.0))
        statistics[f"{name}.weight"] = weight
        statistics[f"gradient/{name}.weight"] = np.full((8, 4), gradient, np.float32)
        if update is not None:
            statistics[f"update/{name}.weight"] = weight * np.float32(update[name])
    return Step(scalars={} if loss is None else {"loss": loss, "learning_rate": 0.1}, statistics=statistics)


@pytest.mark.parametrize(
    ("ratios", "begin"),
    [
        ((0.2, 3.0, 30.0), "half of the weights change by 3 times their size or more at step 1"),
        ((0.1, 0.2, 15.0), None),
        ((2.0,), "the only weight changes by 2 times its size or more at step 1"),
    ],
)
def test_what_half_of_the_weights_reach(run_path: Path, ratios: tuple[float, ...], begin: str | None) -> None:
    layers = LAYERS[: len(ratios)]
    steps = [step(layers, update=dict(zip(layers, ratios, strict=True)))] * 4
    findings = [each for each in found(run_path, "WeightUpdateRatio", steps) if each.severity.value == "warning"]
    if begin is None:
        assert findings == []
        return
    (finding,) = findings
    assert finding.message == begin
    assert finding.value is not None
    assert finding.limit is not None
    assert finding.value > finding.limit


@pytest.mark.parametrize("still", [("first",), ("first", "second")])
def test_weights_that_do_not_move(run_path: Path, still: tuple[str, ...]) -> None:
    steps = [
        step(LAYERS, moved={name: 0.01 * n for name in LAYERS if name not in still}) for n in range(12)
    ]  # fmt: skip
    (finding,) = found(run_path, "UnchangedTensor", steps)
    (captures,) = re.findall(r"any of (\d+) captures", finding.message)
    assert int(captures) == finding.step + 1 == 8
    expected = "first.weight has not" if len(still) == 1 else "first.weight and 1 more have not"
    assert finding.message.startswith(expected)
    assert finding.message.endswith("a gradient reaches it" if len(still) == 1 else "gradients reach them")


def test_a_loss_that_is_not_known_is_not_spoken_of(run_path: Path, tmp_path: Path) -> None:
    dead = [step(LAYERS, loss=None, gradient=0.0)] * 8
    (finding,) = found(run_path, "VanishingGradient", dead)
    assert "loss" not in finding.message
    (with_loss,) = found(tmp_path / "known", "VanishingGradient", [step(LAYERS, gradient=0.0)] * 8)
    assert with_loss.message.endswith("and the loss is 2 in the median of the last 5, after 2 at the start")


def test_activations_beside_an_unknown_loss(run_path: Path) -> None:
    bad = np.array([[np.nan, 1.0]], np.float32)
    (finding,) = found(run_path, "ExplodingTensor", [Step(scalars={}, statistics={"first.output": bad})])
    assert finding.message == "first.output holds NaN or infinite values at step 0"


@pytest.mark.parametrize("window", [1, 8])
def test_units_that_are_dead(run_path: Path, window: int) -> None:
    info = TensorInfo(
        0, "bend.output", Role.OUTPUT, "bend", "ReLU", 1, (4, 8), "float32", 1, module_kind=ModuleKind.RECTIFIER
    )
    units = {"bend.output": np.array([True] * 7 + [False])}
    output = np.ones((64, 8), np.float32)
    steps = [Step(scalars={"loss": 1.0}, units=units, statistics={"bend.output": output}) for _ in range(window)]
    run = build_run(run_path, steps, modules={"bend": ModuleKind.RECTIFIER}, tensors=[info])
    (finding,) = replay(run, [RuleSpec("DeadRelu", {"window": window, "min_values": 0})]).findings
    last = "the last capture" if window == 1 else "the last 8 captures"
    assert finding.message == (
        f"7 of 8 units of bend (ReLU) were zero for every sample of {last} up to step {window - 1}"
    )


def test_updates_of_which_most_are_zero_are_not_called_zero_times_the_weights(run_path: Path) -> None:
    updates = {"first": 0.0, "second": 0.0, "third": 1e-9}
    (finding,) = found(run_path, "WeightUpdateRatio", [step(LAYERS, update=updates)] * 240)
    assert finding.message.startswith("updates change most weights not at all in the median up to step ")


def test_an_epsilon_that_the_dtype_rounds_to_zero_is_not_replaced_by_itself() -> None:
    rule = find_rule("AdamEpsilonDominates")
    assert "epsilon_is_nothing" in symptoms_of(rule)
    known = built_in_knowledge()
    assert known.advise("epsilon_dominates", {"lost_epsilon": 1e-8, "dtype": "float16"})[0] == (
        "Epsilon 1e-08 is zero in float16: use one of at least 1e-4, or keep the weights in float32"
    )
    large = known.advise("epsilon_dominates", {"epsilon": 0.1, "large_epsilon": 0.1})[0]
    assert large.startswith("Epsilon is 0.1: use 1e-8, the default")
    assert "default" not in known.advise("epsilon_dominates", {"epsilon": 1e-8})[0]
