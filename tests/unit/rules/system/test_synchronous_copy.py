from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from clocks import Now
from phased_steps import phased
from real_runs import RealRuns, Watch, batch, classifier, update
from timed_layers import Takes
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding, Status
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def look(count: int, *, seconds: float = 0.1, waited: float = 0.0, complete: bool = True, **more: Any) -> Any:
    read = {"at": "train.py:7", "call": "item", "device": "cpu", "phase": "other", "count": count, "seconds": waited}
    return {"tensor_reads": {"seconds": seconds, "complete": complete, "reads": [{**read, **more}] if count else []}}


def steps(looks: Sequence[Any], **seconds: float) -> list[Step]:
    """Ten steps of 100 ms, then steps with these looks."""
    spent = {"forward_s": 0.03, "backward_s": 0.03, "other_s": 0.04, **seconds}
    return [*[phased(**spent)] * 10, *(phased(facts=each, **spent) for each in looks)]


def found(path: Path, run: Sequence[Step], **parameters: object) -> list[Finding]:
    return list(replay(build_run(path, run), [RuleSpec("SynchronousCopy", parameters)]).findings)


class TestSynchronousCopy(RuleSuite):
    rule = find_rule("SynchronousCopy")

    def sick(self) -> Sequence[Step]:
        return steps([look(1, waited=0.03, device="cuda")] * 4)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        synchronized = look(1, waited=0.02, device="cuda", call="synchronize", phase="update")
        return steps([look(1024, complete=False)] * 4), steps([synchronized] * 4)

    def healthy(self) -> Sequence[Step]:
        # A number in each step; a wait that is short; reads now and then; many reads in a phase that takes no time.
        return [
            *steps([look(1)] * 4), *steps([look(3, waited=0.004, device="cuda")] * 4),
            *steps([look(1024 * (n % 3 == 0)) for n in range(12)]), *steps([look(1024, phase="data")] * 4),
        ]  # fmt: skip


def test_the_message_has_line_wait_and_gain(run_path: Path) -> None:
    finding = found(run_path, steps([look(2, waited=0.03, device="cuda", call="__bool__")] * 3))[0]
    assert finding.message == (
        "train.py:7 waits for the device (cuda) in each step, in bool(): 30 ms of 100 ms, 30 %, so without it steps "
        "are at most 1.4 times as fast"
    )
    assert finding.causes == ("waits_for_device",)
    assert finding.evidence["gain"] == pytest.approx(0.1 / 0.07)


def test_reads_on_the_host_cost_at_most_their_phase(run_path: Path) -> None:
    finding = found(run_path, steps([look(1024, complete=False)] * 3))[0]
    assert finding.message == (
        "train.py:7 reads at least 1024 numbers of tensors one by one in each step, by item(); its phase, which "
        "lies between an update and the next batch, takes 40 % of the time, so without it steps are at most 1.7 times "
        "as fast"
    )
    assert finding.causes == ("numbers_read_one_by_one",)
    assert finding.evidence["gain"] == pytest.approx(0.1 / 0.06, rel=1e-5)


@pytest.mark.parametrize(("waited", "count"), [(0.0095, 0), (0.0105, 1)])
def test_the_limit_is_a_share_of_the_steps(run_path: Path, waited: float, count: int) -> None:
    assert len(found(run_path, steps([look(1, waited=waited, device="cuda")] * 3))) == count


@pytest.mark.parametrize(("reads", "count"), [(255, 0), (256, 1)])
def test_few_reads_on_the_host_are_free(run_path: Path, reads: int, count: int) -> None:
    assert len(found(run_path, steps([look(reads)] * 3))) == count


@pytest.mark.parametrize(
    ("looks", "status", "reason"),
    [(2, Status.NOT_APPLICABLE, "the run has 2 observed steps; 3 are needed"), (3, Status.NO_ISSUES_FOUND, "")],
)
def test_few_looks_are_no_judgement(run_path: Path, looks: int, status: Status, reason: str) -> None:
    (judged,) = replay(build_run(run_path, steps([look(1)] * looks)), [RuleSpec("SynchronousCopy")]).statuses
    assert (judged.status, judged.reason) == (status, reason)


def correct(outputs: torch.Tensor, labels: torch.Tensor, clock: Now) -> int:
    clock.advance(len(labels) * 0.00001)
    return sum(int(outputs[n].argmax().item() == labels[n].item()) for n in range(len(labels)))


class TestSynchronousCopyInRealRuns(RealRuns):
    rule = "SynchronousCopy"
    cause = "numbers_read_one_by_one"
    profiler = True
    reads_more = "it reads the phases of steps, which differ between two runs"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier().append(Takes(self.clock, 0.001))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        total = 0.0
        for _ in range(24):
            inputs, labels = batch(512)
            update(model, optimizer, inputs, labels)
            with torch.no_grad():
                outputs = inputs[:, :4]
                total += correct(outputs, labels, self.clock) if sick else (outputs.argmax(1) == labels).sum().item()
