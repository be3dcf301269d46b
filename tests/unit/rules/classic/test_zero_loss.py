"""ZeroLoss: a loss that is zero from the beginning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from real_runs import RealRuns, Watch, batch, classifier
from synthetic_steps import MODULES, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


class TestZeroLoss(RuleSuite):
    rule = find_rule("ZeroLoss")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(40, loss=lambda n: 0.0)

    def healthy(self) -> Sequence[Step]:
        # Converges to zero.
        return training(80, loss=lambda n: 2.3 if n < 10 else 0.0)


class TestZeroLossInRealRuns(RealRuns):
    rule = "ZeroLoss"
    cause = "loss_without_content"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for _ in range(30):
            inputs, labels = batch()
            out = model(inputs)
            # A mask that leaves nothing.
            mask = (labels < 0 if sick else labels >= 0).float()
            loss = (nn.functional.cross_entropy(out, labels, reduction="none") * mask).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_a_loss_that_is_zero_in_a_second_task_is_not_said_to_be_so_from_the_start(tmp_path: Path) -> None:
    stage = {30: {"stage": {"begins_with": "optimizer", "trained": 4}}}
    steps = training(60, noise=0.0, loss=lambda n: 2.3 if n < 30 else 0.0, facts=stage)
    (finding,) = replay(build_run(tmp_path / "run", steps, modules=MODULES), [RuleSpec("ZeroLoss")]).findings
    assert finding.message == (
        "the loss is exactly zero in each of the first 20 steps of another task, from step 30 on"
    )  # fmt: skip
    assert finding.since == 30
