"""ExplodingTensor: what is infinite or not a number, and the first module that made it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from real_runs import RealRuns, Watch, batch, classifier, update
from synthetic_steps import ALWAYS, MODULES, training
from watchglass.config import RuleSpec
from watchglass.diagnose import diagnose, verdict
from watchglass.evaluate import replay
from watchglass.records import Severity
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


class TestExplodingTensorInRealRuns(RealRuns):
    rule = "ExplodingTensor"
    cause = "bad_data"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for step in range(20):
            inputs, labels = batch()
            if sick and step == 10:
                inputs[3, 4] = float("nan")
            update(model, optimizer, inputs, labels)


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


def _first_cause(run: Path, model: nn.Module, inputs: torch.Tensor) -> str:
    """The likeliest cause after a few steps by the default rules."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watchglass.watch(model, run=run, strict=True, save_interval=1):
        for _ in range(8):
            optimizer.zero_grad()
            out = model(inputs)
            out = out[0][:, -1] if isinstance(out, tuple) else out
            F.cross_entropy(out[:, :4].float() * 40, torch.arange(len(inputs)) % 4).backward()
            optimizer.step()
    evaluation = replay(str(run), default_rules())
    found = verdict(watchglass.open_run(str(run)), evaluation).diagnoses
    return found[0].causes[0].cause.id if found and found[0].causes else ""


def test_an_exploding_recurrence_that_nothing_clips_is_named_first(run_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.RNN(2, 16, nonlinearity="relu", batch_first=True)
    nn.init.orthogonal_(model.weight_hh_l0, gain=3.0)
    assert _first_cause(run_path, model, torch.randn(8, 40, 2)) == "exploding_recurrent_gradient"


def test_overflow_of_weights_in_float16_is_named_first(run_path: Path) -> None:
    torch.manual_seed(0)
    model = classifier().half()
    assert _first_cause(run_path, model, 2e4 * torch.randn(8, 16).half()) == "overflow_in_half_precision"


@pytest.mark.parametrize(
    ("rates", "jumps"),
    [
        ([0.05] * 30 + [1e5] * 10, True),
        # A warm-up from next to nothing, a restart at the rate of the start, and a schedule that raises the rate.
        ([1e-9] + [0.05] * 39, False),
        ([0.05] * 10 + [1e-6] * 20 + [0.05] * 10, False),
        ([0.05] * 30 + [0.5] * 10, False),
    ],
)
def test_a_learning_rate_that_jumps_just_before_is_the_first_cause(
    run_path: Path, rates: list[float], jumps: bool
) -> None:
    steps = training(40, loss=lambda n: 2.3 if n < 32 else float("nan"), rate=lambda n: rates[n])
    findings = replay(build_run(run_path, steps, modules=MODULES), [RuleSpec("ExplodingTensor")]).findings
    (diagnosis,) = diagnose(findings)
    assert (diagnosis.causes[0].cause.id == "learning_rate_jumped") is jumps
    assert ("rose from 0.05 to 1e+05 at step 30, and then the loss became NaN" in diagnosis.headline) is jumps


class TestAJumpOfTheLearningRateInRealRuns(RealRuns):
    rule = "ExplodingTensor"
    cause = "learning_rate_jumped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for step in range(30):
            if sick and step == 20:
                optimizer.param_groups[0]["lr"] = 1e5
            inputs, labels = batch()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(inputs).float(), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
