"""UpdateBound: the update takes most of each step of few samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from phased_steps import phased
from real_runs import RealRuns, Watch, update
from timed_layers import Takes
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Fact, Finding, Mode, Severity, Status
from watchglass.rules import capture_for, find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def about(samples: int = 2, batches: int = 1, **changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Facts of a run on the host with batches of so many samples."""
    calls = [["backward", batches], ["optimizer.step", 1]]
    facts: dict[str, Any] = {
        "model": {"module_kinds": {"0": "linear"}, "module_types": {"0": "Linear"}, "devices": ["cpu"]},
        "optimizer": {"type": "Adam", "groups": [{"lr": 0.001}]},
        "calls": {"orders": [{"calls": calls, "times": 9}], "rounds": 9},
        "batch": [{"hashes": [f"{n}"], "shapes": {"0": [samples, 16]}} for n in range(batches)],
        **changes,
    }
    return {kind: data for kind, data in facts.items() if data is not None}


def steps(update_s: float, count: int = 150, facts: dict[str, Any] | None = None) -> list[Step]:
    rest = {"forward_s": 0.02, "backward_s": 0.03}
    first = phased(facts=_rows(about() if facts is None else facts), update_s=1.0, **rest)  # the state is allocated
    # Captures, with the work of watchglass in the update, do not matter.
    return [first, *(phased(update_s=10 * update_s if n % 8 == 0 else update_s, **rest) for n in range(1, count))]


def _rows(facts: Mapping[str, Any]) -> Any:
    named = [(kind, row) for kind, rows in facts.items() for row in (rows if isinstance(rows, list) else [rows])]
    return [Fact(kind, 0, "test", row) for kind, row in named]


def found(path: Path, run: Sequence[Step]) -> list[Finding]:
    return list(replay(build_run(path, run), [RuleSpec("UpdateBound")]).findings)


class TestUpdateBound(RuleSuite):
    rule = find_rule("UpdateBound")

    def sick(self) -> Sequence[Step]:
        return steps(0.15)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (steps(0.15, 60), steps(0.15, facts=about(4, batches=8)))

    def healthy(self) -> Sequence[Step]:
        # Less than half; and an evaluation, whose steps have no update.
        return [*steps(0.04), *[phased(Mode.EVAL, forward_s=0.01)] * 8, *steps(0.04)[1:]]


def test_the_message_says_what_a_larger_batch_gains(run_path: Path) -> None:
    (finding,) = found(run_path, steps(0.15))
    assert finding.severity is Severity.WARNING
    assert finding.message == (
        "the update of the weights takes 75 % of each training step of 200 ms, and would take as long for more than 2 "
        "samples; if the rest grows with the batch, each sample takes 0.62 times as long at twice the batch, and at "
        "least 0.25 times at any"
    )
    assert finding.evidence["gain"] == pytest.approx(4.0)
    assert finding.evidence["batch_size"] == 2


@pytest.mark.parametrize(
    "run",
    [
        steps(0.15, facts=about(64)),  # many samples: other work may be counted as update
        steps(0.15, facts=about(16, batches=4)),
        [*steps(0.15, 72), *steps(0.01, 80)[1:]],  # the later window does not have it
        steps(0.049),
    ],
)
def test_many_samples_or_other_phases_are_no_finding(run_path: Path, run: Sequence[Step]) -> None:
    assert found(run_path, run) == []


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (steps(0.15, 20), "the run has 20 training steps; 40 are needed"),
        (steps(0.15, facts=about(model={"devices": ["cuda"]})), "the model is on cuda"),
        (steps(0.15, facts=about(model=None)), "the device of the model is not known"),
        (
            steps(0.15, facts=about(optimizer=None)),
            "the script writes its updates itself, so other work may be a part of them",
        ),
        (
            steps(0.15, facts=about(optimizer={"type": "LBFGS", "groups": [{}]})),
            "LBFGS computes forwards and backwards within its step",
        ),
        (steps(0.15, facts=about(batch=None)), "the number of samples of an update is not clear"),
        (
            steps(0.15, facts=about(model={
                "module_kinds": {"0": "recurrent"}, "module_types": {"0": "LSTM"}, "devices": ["cpu"]})),
            "the number of samples of an update is not clear",
        ),
        (steps(0.04), ""),
    ],
)  # fmt: skip
def test_where_the_time_of_the_update_says_nothing_the_rule_does_not_apply(
    run_path: Path, run: list[Step], reason: str
) -> None:
    (status,) = replay(build_run(run_path, run), [RuleSpec("UpdateBound")]).statuses
    assert (status.status, status.reason) == (Status.NOT_APPLICABLE if reason else Status.NO_ISSUES_FOUND, reason)


class TestUpdateBoundInRealRuns(RealRuns):
    rule = "UpdateBound"
    cause = "batch_small_for_machine"
    profiler = True
    reads_more = "no two runs take the same times"

    def train(self, watch: Watch, *, sick: bool) -> None:
        # A vocabulary, of which a batch reads some rows and Adam updates all.
        samples = 2 if sick else 64
        layers = [nn.EmbeddingBag(200, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)]
        model = nn.Sequential(*layers, Takes(self.clock, 0.0001 * samples))
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        watch(model)
        optimizer.register_step_pre_hook(lambda *_: self.clock.advance(0.005))
        for _ in range(50):
            labels = torch.randint(0, 4, (samples,))
            update(model, optimizer, labels[:, None] + 4 * torch.randint(0, 50, (samples, 8)), labels)


class UpdatedByHand(RealRuns):
    """A script that updates its weights itself, and then does something else."""

    rule = "UpdateBound"
    profiler = True
    __test__ = False  # it has no healthy twin

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = nn.Sequential(nn.Linear(16, 4), Takes(self.clock, 0.0001))
        watch(model)
        for _ in range(60):
            nn.functional.cross_entropy(model(torch.randn(2, 16)), torch.randint(0, 4, (2,))).backward()
            with torch.no_grad():
                for weight in model.parameters():
                    weight -= 0.1 * weight.grad
            model.zero_grad()
            self.clock.advance(0.005 if sick else 0.0)


def test_what_a_script_does_after_an_update_of_its_own_is_not_taken_for_the_update(tmp_path: Path) -> None:
    rules = [RuleSpec("UpdateBound"), RuleSpec("ScriptBound")]
    UpdatedByHand().record(tmp_path / "run", capture_for(rules), sick=True)
    evaluation = replay(tmp_path / "run", rules)
    assert evaluation.findings == ()
    reason = "the script writes its updates itself, so other work may be a part of them"
    assert [(each.status, each.reason) for each in evaluation.statuses] == [(Status.NOT_APPLICABLE, reason)] * 2
