"""Rules read phases of steps and samples of metrics, live and in replay alike, and a rule without them says why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from moments import FollowedCase
from watchglass.config import RuleSpec
from watchglass.errors import InvalidValueError, PluginFileError
from watchglass.evaluate import replay
from watchglass.records import PHASE_NAMES, PHASES, RuleStatus, Status
from watchglass.rules import Needs, build_rule
from watchglass.testing import Batch, Step, build_run

RULES = '''
from watchglass.records import PHASES, Severity
from watchglass.rules import Needs, Rule, Windows

class Waits(Rule):
    """Says which phases each view shows."""
    needs = (Needs(rows=(PHASES,), why="to see waits"), Needs(metrics=("cpu.limit",), optional=True))
    streams = Windows(kinds=("samples",), length_s=1)
    def check(self, view):
        (row,) = view.rows(PHASES) or (None,)
        phases = None if row is None else {name[:-2]: round(s, 3) for name, s in row._asdict().items() if s}
        cores = [float(each.samples("cpu.limit").values[-1, 0]) for each in view.streams]
        yield self.finding(view, severity=Severity.INFO, subject=f"{view.mode_step}", message=f"{phases} {cores}")

class Silent(Rule):
    """Finds nothing in phases."""
    needs = (Needs(rows=(PHASES,), why="to see waits"),)
    def check(self, view):
        return ()

class Device(Rule):
    """Says how busy the GPUs are."""
    needs = (Needs(metrics=("gpu.utilization", "npu.utilization"), why="to compare"), Needs(metrics=("cpu.iowait",)))
    streams = Windows(kinds=("samples",), length_s=10)
    def check_window(self, window):
        busy = window.samples("gpu.utilization")
        if len(busy.time_ns):
            yield self.finding(window, severity=Severity.INFO, message=f"{busy.values.tolist()}")

class NoStreams(Rule):
    """Names metrics without streams."""
    needs = (Needs(metrics=("gpu.utilization",)),)
    def check(self, view):
        return ()
'''


@pytest.fixture
def rules(tmp_path: Path) -> Any:
    path = tmp_path / "rules.py"
    path.write_text(RULES)
    return lambda name: (RuleSpec(f"{path}:{name}"),)


def step(data: float | None = None, **more: Any) -> Step:
    rows = {} if data is None else {PHASES: [[data, *[0.0] * 7]]}
    return Step(scalars={"loss": 1.0}, rows=rows, **more)


def status(run: Path, steps: Sequence[Step | Batch], specs: tuple[RuleSpec, ...]) -> RuleStatus:
    (found,) = replay(build_run(run, steps), specs).statuses
    return found


def test_a_step_shows_its_phases_live_and_in_replay(run_path: Path, rules: Any) -> None:
    case = FollowedCase(run_path, rules("Waits"))
    case.write(Batch(metrics={"cpu.limit": [8.0] * 4}, seconds=2))
    case.write(step(0.25), step(), step(0.5))
    assert case.messages("Waits") == ["{'data': 0.25} [8.0]", "None [8.0]", "{'data': 0.5} [8.0]"]
    case.end()


def test_the_phases_of_a_step_are_shown_with_the_model_that_leads_it(run_path: Path, rules: Any) -> None:
    both = {"loss": 1.0, "model_2/loss": 2.0}
    steps = [Step(scalars=both, rows={PHASES: [[0.25, *[0.0] * 7]]}, model=n % 2) for n in range(4)]
    found = replay(build_run(run_path, steps), rules("Waits")).findings
    shown = {(each.step, each.model): each.message.rpartition(": {")[1] or "None" in each.message for each in found}
    assert {key for key, each in shown.items() if each == ": {"} == {(0, 0), (1, 1), (2, 0), (3, 1)}
    assert len(shown) > 4


def test_names_are_in_the_order_of_the_recorded_fields() -> None:
    assert [f"{name}_s" for name in PHASE_NAMES] == [field.name for field in PHASES.own]


def test_a_rule_without_phases_starves_and_says_what_records_them(run_path: Path, rules: Any) -> None:
    found = status(run_path, [step()] * 2, rules("Silent"))
    assert found == RuleStatus(
        "Silent", Status.STARVED, "the phases of steps never came (needed to see waits); PyTorch scripts record them "
        "under watchglass run, or with watch(model, profiler=True)",
    )  # fmt: skip
    assert status(run_path.with_name("with"), [step(), step(0.5)], rules("Silent")).status is Status.NO_ISSUES_FOUND


def test_without_samples_a_rule_starves_if_it_needs_them(run_path: Path, rules: Any) -> None:
    found = status(run_path, [step(0.5)], rules("Device"))
    assert found == RuleStatus("Device", Status.STARVED, "no stream of this run has rows of the kind samples")
    assert status(run_path.with_name("optional"), [step(0.5)], rules("Waits")).status is Status.NO_ISSUES_FOUND


def test_a_machine_without_the_metric_makes_a_rule_not_applicable(run_path: Path, rules: Any) -> None:
    batch = Batch(metrics={"cpu.iowait": [1.0] * 4, "gpu.utilization": [[float("nan")] * 2] * 4}, seconds=20)
    found = status(run_path, [step(), batch, step()], rules("Device"))
    assert found.status is Status.NOT_APPLICABLE
    assert found.reason == (
        "the machine of this run gave no samples of gpu.utilization or npu.utilization (needed to compare)"
    )
    half = Batch(metrics={"gpu.utilization": [[1.0, 2.0]] * 4}, seconds=20)
    found = status(run_path.with_name("gpu"), [half, half, step()], rules("Device"))
    assert found.status is Status.NO_ISSUES_FOUND  # an info is a finding


def test_metrics_are_a_need_of_their_own() -> None:
    with pytest.raises(InvalidValueError, match="metrics of Needs must stand alone"):
        Needs(metrics=("cpu.utilization",), rows=(PHASES,))


def test_metrics_need_windows_of_samples(rules: Any) -> None:
    with pytest.raises(PluginFileError, match=r"streams of .* must hold samples, because its needs name metrics"):
        build_rule(rules("NoStreams")[0])
