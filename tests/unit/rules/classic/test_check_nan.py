"""CheckNaN: NaN in the loss, a weight or a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from real_runs import RealRuns, Watch, batch, classifier, update
from synthetic_steps import MODULES, training
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestCheckNaN(RuleSuite):
    rule = find_rule("CheckNaN")
    modules = MODULES
    severity = Severity.ERROR

    def sick(self) -> Sequence[Step]:
        return training(20, loss=lambda n: float("nan") if n > 9 else 1.0)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (training(20, change=lambda n, arrays: arrays["gradient/stem.weight"].fill(np.nan)),)

    def healthy(self) -> Sequence[Step]:
        # Infinite values, masks among them, are for ExplodingTensor.
        return training(20, change=lambda n, arrays: arrays["stem.output"].fill(-np.inf))


class TestCheckNaNInRealRuns(RealRuns):
    rule = "CheckNaN"
    cause = "bad_data"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for step in range(12):
            inputs, labels = batch()
            if sick and step == 6:
                inputs[3, 5] = torch.nan
            update(model, optimizer, inputs, labels)
