"""A healthy training run has no finding of any default rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from synthetic_steps import ALWAYS, MODULES, SPARSE, initialization, training, with_evaluations
from watchglass.diagnose import diagnose
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import build_rule, default_rules
from watchglass.testing import build_run


@pytest.mark.parametrize(("due", "length"), [(SPARSE, 1500), (ALWAYS, 500)], ids=["sparse", "always"])
def test_a_healthy_run_has_no_findings(run_path: Path, due: Callable[[int], bool], length: int) -> None:
    def rate(step: int) -> float:
        return 0.1 * step / 50 if step < 50 else 0.05 * (1 + math.cos(math.pi * (step - 50) / (length - 50)))

    steps = training(
        length,
        loss=lambda n: 2.3 * math.exp(-n / 150) + 0.01,
        gradient=lambda n, i: 1e-2 * math.exp(-n / 200) * (1 + i),
        ratio=lambda n, i: 0.03 * rate(n),
        rate=rate,
        noise=0.4,
        dead=lambda n, i: 0.25,
        facts={0: {"initialization": initialization(()), "optimizer": {"type": "SGD", "groups": [{"lr": 0.1}]}}},
        due=due,
    )
    run = build_run(run_path, with_evaluations(steps, lambda n: 0.1 + 2.2 * math.exp(-n / 150), 100), modules=MODULES)
    evaluation = replay(run, default_rules())
    assert [f.message for f in evaluation.findings if f.severity is not Severity.INFO] == []
    # Rules of the script's calls and data have none here; nor has the model experts.
    judged = {spec.name for spec in default_rules() if not any(need.facts for need in build_rule(spec).needs)}
    judged -= {"DeadExpert", "MoEImbalance"}
    statuses = {status.status.value for status in evaluation.statuses if status.rule in judged}
    assert (len(judged) > 4, statuses) == (True, {"NoIssuesFound"})
    assert diagnose(evaluation.findings) == ()
