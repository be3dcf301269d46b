"""Steps that are slow since values became NaN are one diagnosis with them; what is slow by itself is another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import watchglass
from clocks import Now
from real_runs import batch, classifier
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.config import RuleSpec
from watchglass.diagnose import verdict
from watchglass.evaluate import replay
from watchglass.records import Verdict
from watchglass.rules import capture_for, default_rules

pytestmark = pytest.mark.slow

#: The first step whose loss is NaN, and the number of steps.
BAD, STEPS = 40, 58
#: What a step takes, and a pause after it.
STEP_S, PAUSE_S = 0.01, 0.3
RULES = [
    *default_rules(),
    RuleSpec("MixedPrecision", {"start": 0}),
    RuleSpec("StepOutlier", {"least": PAUSE_S / 2, "n_outliers": 2}),
]


def judged(run: Path, pauses: Callable[[int], bool]) -> Verdict:
    """The verdict on a run whose loss is NaN from step 40 on, so that its scaler skips updates, and which pauses."""
    torch.manual_seed(0)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    clock = Now()
    with Hook(run, strict=True, profiler=True, **{**capture_for(RULES), "save_interval": 1}) as hook:
        hook.port.phase_clock = clock.monotonic_ns
        PyTorchAdapter(hook.port, discover=True)
        for step in range(STEPS):
            inputs, labels = batch()
            clock.advance(STEP_S)
            loss = F.cross_entropy(model(inputs), labels) * (float("nan") if step >= BAD else 1.0)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if pauses(step):
                clock.advance(PAUSE_S)
    return verdict(watchglass.open_run(run), replay(str(run), RULES))


def test_slow_since_the_loss_became_bad_is_one_diagnosis_that_states_both(tmp_path: Path) -> None:
    found = judged(tmp_path / "run", lambda step: step >= BAD)
    (diagnosis,) = found.diagnoses
    assert diagnosis.step == BAD
    assert f"the loss became NaN at step {BAD}" in diagnosis.headline
    assert f"31 times as long since step {BAD + 1}" in diagnosis.headline
    assert "mostly between an update and the next batch" in diagnosis.headline
    chain = [finding for finding in found.findings if finding.id in diagnosis.findings]
    assert {finding.rule for finding in chain} >= {"ExplodingTensor", "MixedPrecision", "StepOutlier"}
    assert any("skipped 3 updates in a row" in finding.message for finding in chain)
    assert not any("float16" in finding.message for finding in chain), "the model has none"
    evidence = [sentence for ranked in diagnosis.causes for sentence in ranked.evidence]
    assert not any("StepOutlier" in sentence for sentence in evidence), "time is no evidence for what made values bad"


def test_pauses_that_come_by_themselves_are_a_diagnosis_beside_that_of_the_loss(tmp_path: Path) -> None:
    found = judged(tmp_path / "run", lambda step: step in (34, 37, 44))
    values, pauses = found.diagnoses
    assert f"the loss became NaN at step {BAD}" in values.headline
    assert "times" not in values.headline
    assert pauses.causes[0].cause.id == "pauses_between_steps"
    rules = {finding.id: finding.rule for finding in found.findings}
    assert {rules[each] for each in pauses.findings} == {"StepOutlier"}
    assert "StepOutlier" not in {rules[each] for each in values.findings}
