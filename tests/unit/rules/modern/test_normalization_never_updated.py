"""NormalizationNeverUpdated: running statistics that stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from real_runs import RealRuns, Watch, batch, evaluate, fit
from synthetic_steps import training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def fact(**changes: Any) -> dict[str, Any]:
    module = {
        "module": "norm", "type": "BatchNorm1d", "training": True, "momentum": 0.1, "batches": 8, "initial": False,
        "moved": 0.1, "mean_off": 0.2, "variance_ratio": 1.1,
    }  # fmt: skip
    return {"running_statistics": {"model_training": True, "modules": [{**module, **changes}]}}


class TestNormalizationNeverUpdated(RuleSuite):
    rule = find_rule("NormalizationNeverUpdated")

    def sick(self) -> Sequence[Step]:
        return training(40, facts={0: fact(initial=True), 31: fact(initial=True)})

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return [training(40, facts={31: fact(momentum=1e-4, mean_off=3.0)})]

    def healthy(self) -> Sequence[Step]:
        # Pretrained ones that are kept.
        return training(40, facts={0: fact(), 31: fact(training=False, moved=0.0, mean_off=3.0)})


class TestNormalizationNeverUpdatedInRealRuns(RealRuns):
    rule = "NormalizationNeverUpdated"
    cause = "normalization_never_updated"

    def train(self, watch: Watch, *, sick: bool) -> None:
        norm = nn.BatchNorm1d(16, momentum=0.0 if sick else 0.1)
        model = nn.Sequential(nn.Linear(16, 16), norm, nn.ReLU(), nn.Linear(16, 4))
        fit(model, watch)
        evaluate(model, *batch())
