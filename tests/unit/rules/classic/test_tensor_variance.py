"""TensorVariance: a variance beyond given limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from real_runs import RealRuns, Watch, classifier, fit
from synthetic_steps import MODULES, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import ModuleKind, Severity
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


class TestTensorVariance(RuleSuite):
    rule = find_rule("TensorVariance")
    modules = MODULES
    parameters: ClassVar = {"max_threshold": 4.0, "name_regex": "weight"}

    def sick(self) -> Sequence[Step]:
        return training(20, weight=lambda n, i: 3.0)

    def healthy(self) -> Sequence[Step]:
        return training(20)


class TestTensorVarianceInRealRuns(RealRuns):
    rule = "TensorVariance"
    cause = "poor_initialization_scale"

    def rules(self) -> list[RuleSpec]:
        return [RuleSpec(self.rule, {"min_threshold": 1e-4, "name_regex": r"^0\.weight"})]

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        if sick:
            model[0].weight.data *= 1e-3
        fit(model, watch, rate=0.01)


def test_without_limits_only_normalised_outputs_are_judged(run_path: Path) -> None:
    wide = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32) * 9
    steps = [Step({"loss": 1.0}, {"norm.output": wide, "fc.output": wide})]
    run = build_run(run_path, steps, modules={"fc": ModuleKind.LINEAR, "norm": ModuleKind.NORMALIZATION})
    (finding,) = replay(run, [RuleSpec("TensorVariance")]).findings
    assert (finding.severity, finding.tensors) == (Severity.INFO, ("norm.output",))
    assert replay(run, [RuleSpec("TensorVariance")], calibration="sagemaker").findings == ()
