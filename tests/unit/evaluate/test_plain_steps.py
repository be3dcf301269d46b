"""Rules are not called where they declare themselves idle: at steps with scalars alone, or of other modes."""

from __future__ import annotations

from pathlib import Path

from synthetic_steps import MODULES, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Mode, Status
from watchglass.testing import Step, build_run

RULES = '''
from watchglass.records import Mode, Severity
from watchglass.rules import Needs, Rule, state

class Called(Rule):
    """Counts the steps at which it is called."""
    needs = (Needs(scalars=("loss",)),)
    count: int = state(int)
    def check(self, view):
        self.count += 1
        return ()
    def finish(self, view):
        yield self.finding(view, severity=Severity.INFO, value=self.count, message="end")

class Idle(Called):
    """The same, idle at plain steps."""
    idle_at_plain_steps = True

class OfTraining(Called):
    """The same, at training steps only."""
    modes = (Mode.TRAIN,)
'''


def test_an_idle_rule_is_called_at_steps_with_tensors_or_facts_only(run_path: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    plain = [Step(scalars={"loss": 1.0}) for _ in range(20)]
    steps = [*training(10), *plain, Step(scalars={"loss": 1.0}, facts={"clip": {"function": "norm"}}), *plain]
    specs = [RuleSpec(f"{tmp_path / 'rules.py'}:{name}") for name in ("Called", "Idle")]
    evaluation = replay(build_run(run_path, steps, modules=MODULES), specs)
    assert {found.rule: found.value for found in evaluation.findings} == {"Called": 51.0, "Idle": 11.0}
    assert {status.status for status in evaluation.statuses} == {Status.NO_ISSUES_FOUND}


def test_a_rule_is_called_at_steps_of_its_modes_only(run_path: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    steps = [Step(scalars={"loss": 1.0}, mode=Mode.EVAL if n % 5 == 4 else Mode.TRAIN) for n in range(50)]
    specs = [RuleSpec(f"{tmp_path / 'rules.py'}:{name}") for name in ("Called", "OfTraining")]
    evaluation = replay(build_run(run_path, steps), specs)
    assert {found.rule: found.value for found in evaluation.findings} == {"Called": 50.0, "OfTraining": 40.0}
