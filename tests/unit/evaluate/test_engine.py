"""The engine folds, caps, survives rules that raise, and knows where each rule stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moments import feed, finish
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.errors import InvalidValueError, NotARunError
from watchglass.evaluate import replay
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.engine.folding import MOST_FINDINGS
from watchglass.evaluate.engine.unmet_needs import NeedSeen
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.records import Mode, Status
from watchglass.rules import build_rule, default_rules
from watchglass.store import LocalStore
from watchglass.testing import RunBuilder, Step, build_run
from watchglass.testing.rule_suite import views_of

RULES = '''
from watchglass.records import Severity
from watchglass.rules import Needs, Rule

class Noisy(Rule):
    """Finds something new at every step."""
    def check(self, view):
        yield self.finding(view, severity=Severity.WARNING, subject=f"step {view.mode_step}", message="noise")

class Steady(Rule):
    """Finds the same twice at every TRAIN step."""
    def check(self, view):
        if view.mode.name == "TRAIN":
            for _ in range(2):
                yield self.finding(view, severity=Severity.WARNING, subject="same", message=f"at {view.mode_step}")

class Raises(Rule):
    """Raises at step 3."""
    def check(self, view):
        if view.mode_step == 3:
            raise ZeroDivisionError("my mistake")
        yield self.finding(view, severity=Severity.INFO, subject="fine", message="fine")

class Wrong(Rule):
    """Gives something else than findings."""
    def check(self, view):
        return ["oops"]

class Nothing(Rule):
    """Returns None."""
    def check(self, view):
        pass

class Hungry(Rule):
    """Needs data that is never recorded."""
    needs = (Needs(scalars=("temperature",), why="to see the weather"),)
    def check(self, view):
        return ()

class Choosy(Rule):
    """Does not apply."""
    def check(self, view):
        return ()
    def applicable(self, view):
        return "there is no ReLU"

class EverySeason(Rule):
    """Finds the same at every step, whatever the mode."""
    def check(self, view):
        yield self.finding(view, severity=Severity.WARNING, subject="same", message="again")

class Numbers(Rule):
    """Finds in NumPy."""
    def check(self, view):
        import numpy as np
        self.rows = getattr(self, "rows", []) + [view.mode_step]
        yield self.finding(
            view, severity=Severity.WARNING, subject="same", message="numbers",
            value=np.float32(0.5), limit=np.int64(3),
            evidence={"mask": np.ones(2, bool), "count": np.int64(7), "rows": self.rows, "lost": float("nan")},
        )
        self.rows.append("changed afterwards")

class Texts(Rule):
    """Gives a word where a number belongs."""
    def check(self, view):
        yield self.finding(view, severity=Severity.WARNING, subject="fine", message="fine")
        yield self.finding(view, severity=Severity.WARNING, subject="same", message="bad", value="high")

class TooMuch(Rule):
    """Gives more than a journal takes."""
    def check(self, view):
        yield self.finding(view, severity=Severity.WARNING, message="more", evidence={"all": "x" * (33 << 20)})

class Shouts(Rule):
    """Raises with more than anybody reads."""
    def check(self, view):
        raise ValueError("begin " + "x" * (33 << 20) + " end")

class Undecided(Rule):
    """Answers with what is neither true nor false."""
    def check(self, view):
        return ()
    def applicable(self, view):
        import numpy as np
        return np.ones(3)

class AtTheEnd(Rule):
    """Looks at the last stretches."""
    def check(self, view):
        return ()
    def finish(self, view):
        for stretch in view.stretches:
            yield self.finding(
                view, severity=Severity.INFO, subject=stretch.mode.name, message="ended", value=stretch.means["loss"]
            )
'''


@pytest.fixture
def rules(tmp_path: Path):
    path = tmp_path / "rules.py"
    path.write_text(RULES)
    return lambda *names: [RuleSpec(f"{path}:{name}") for name in names]


def losses(count: int) -> list[Step]:
    return [Step(scalars={"loss": float(n)}) for n in range(count)]


def test_repeats_fold_and_count_steps(run_path: Path, rules) -> None:
    steps = losses(5)
    steps.insert(2, Step(mode=Mode.EVAL, scalars={"loss": 1.0}))
    (finding,) = replay(build_run(run_path, steps), rules("Steady")).findings
    assert (finding.step, finding.last_step, finding.count, finding.message) == (0, 4, 5, "at 0")


def test_the_last_step_is_one_of_the_mode_of_the_first(run_path: Path, rules) -> None:
    steps = losses(5)
    steps.insert(3, Step(mode=Mode.EVAL, scalars={"loss": 1.0}))
    steps.append(Step(mode=Mode.EVAL, scalars={"loss": 1.0}))
    (finding,) = replay(build_run(run_path, steps), rules("EverySeason")).findings
    assert (finding.mode, finding.step, finding.last_step, finding.count) == (Mode.TRAIN, 0, 4, 7)


def test_a_finding_at_the_end_has_the_last_training_step_although_an_evaluation_followed(run_path: Path, rules) -> None:
    steps = [*losses(5), *(Step(mode=Mode.EVAL, scalars={"loss": 1.0}) for _ in range(3))]
    findings = replay(build_run(run_path, steps), rules("AtTheEnd")).findings
    # The stretches of both modes are there.
    assert {(f.evidence["subject"], f.mode, f.step) for f in findings} == {("EVAL", Mode.TRAIN, 4)}
    (finding,) = replay(build_run(run_path.with_name("only"), steps[5:]), rules("AtTheEnd")).findings
    assert (finding.mode, finding.step) == (Mode.EVAL, 2)


def test_findings_are_plain_whatever_a_rule_puts_into_them(run_path: Path, rules) -> None:
    (finding,) = replay(build_run(run_path, losses(3)), rules("Numbers")).findings
    assert (finding.value, finding.limit, finding.count) == (0.5, 3.0, 3)
    found = json.loads(json.dumps(finding.to_json()))["evidence"]
    assert {name: found[name] for name in ("mask", "count", "rows", "lost")} == {
        "mask": [True, True], "count": 7, "rows": [0], "lost": "NaN",
    }  # fmt: skip


@pytest.mark.parametrize("live", [False, True])
def test_what_no_journal_takes_is_the_fault_of_its_rule(run_path: Path, rules, live: bool) -> None:
    path, specs = build_run(run_path, losses(3)), rules("Texts", "TooMuch", "Shouts", "Undecided", "Steady")
    if live:
        evaluator = Evaluator(EvaluatorConfig(path, None, tuple(specs)))
        evaluator.open(lambda seconds: False)
        while evaluator.turn():
            pass
        evaluator.finish()
        evaluation = evaluator.evaluation()
    else:
        evaluation = replay(path, specs)
    texts, too_much, shouts, undecided, steady = evaluation.statuses
    assert texts.status is too_much.status is shouts.status is undecided.status is Status.ERROR
    assert "a finding must hold plain values, see Rule.finding, but has value 'high'" in texts.reason
    assert "at most" in too_much.reason
    assert "ValueError: begin xxx" in shouts.reason
    assert shouts.reason.endswith("xxx end\n")
    assert max(len(status.reason) for status in evaluation.statuses) < 20_000
    assert "ValueError" in undecided.reason
    assert steady.status is Status.ISSUES_FOUND
    assert [finding.evidence["subject"] for finding in evaluation.findings] == ["fine", "same"]


def test_findings_by_the_million_are_capped_and_counted(run_path: Path, rules) -> None:
    evaluation = replay(build_run(run_path, losses(MOST_FINDINGS + 30), workers=2), rules("Noisy"))
    assert len(evaluation.findings) == 2 * MOST_FINDINGS
    assert evaluation.statuses[0].reason == "60 further findings were counted and not kept"


def test_a_rule_that_raises_stops_and_the_others_go_on(run_path: Path, rules) -> None:
    evaluation = replay(build_run(run_path, losses(10)), rules("Raises", "Steady"))
    raises, steady = evaluation.statuses
    assert raises.status is Status.ERROR
    assert "raised at TRAIN step 3 of worker_0" in raises.reason
    assert "ZeroDivisionError: my mistake" in raises.reason
    assert steady.status is Status.ISSUES_FOUND
    assert {finding.rule: finding.count for finding in evaluation.findings} == {"Raises": 3, "Steady": 10}


def test_statuses_say_why(run_path: Path, rules) -> None:
    names = ("Wrong", "Nothing", "Hungry", "Choosy")
    wrong, nothing, hungry, choosy = replay(build_run(run_path, losses(3)), rules(*names)).statuses
    assert wrong.status is Status.ERROR
    assert "must yield findings" in wrong.reason
    assert nothing.status is Status.NO_ISSUES_FOUND
    assert hungry.status is Status.STARVED
    assert hungry.reason == "the scalar temperature never came (needed to see the weather)"
    assert (choosy.status, choosy.reason) == (Status.NOT_APPLICABLE, "there is no ReLU")


def test_a_hungry_rule_is_starved_within_a_few_steps(run_path: Path, rules) -> None:
    engine = Engine(rules("Hungry", "Nothing"))
    seen = []
    for view in views_of(build_run(run_path, losses(100))):
        feed(engine, view)
        seen.append(engine.statuses()[0].status)
    assert seen[0] is Status.IN_PROGRESS
    assert seen[-1] is Status.STARVED
    assert engine.statuses()[1].status is Status.IN_PROGRESS


def test_findings_are_in_order_at_every_call(run_path: Path, rules) -> None:
    run = build_run(run_path, losses(20), workers=11)
    engine = Engine(rules("Noisy", "Steady"))
    lengths = []
    for view in reversed(list(views_of(run))):  # any order will do, worker by worker
        feed(engine, view)
        lengths.append(len(engine.findings))
    finish(engine)
    asked, whole = engine.findings, replay(run, rules("Noisy", "Steady")).findings
    assert lengths == sorted(lengths)
    assert [(f.rule, f.worker, f.evidence["subject"]) for f in asked if f.rule == "Noisy"] == [
        (f.rule, f.worker, f.evidence["subject"]) for f in whole if f.rule == "Noisy"
    ]
    assert [f.to_json() for f in asked] == [f.to_json() for f in engine.findings]


def test_why_a_rule_starves_is_worked_out_when_something_changes(
    run_path: Path, rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluator asks where rules stand after every look, of however many workers."""
    said: list[NeedSeen] = []
    say = NeedSeen._worked_out
    monkeypatch.setattr(NeedSeen, "_worked_out", lambda self: (said.append(self), say(self))[1])
    engine = Engine(rules("Hungry", "Steady"))
    for view in views_of(build_run(run_path, losses(100), workers=3)):
        feed(engine, view)
        engine.statuses()
    assert engine.statuses()[0].status is Status.STARVED
    assert len(said) <= 3 + 1


def test_the_end_of_a_training_run_shows_the_last_stretches(run_path: Path, rules) -> None:
    steps = [
        *losses(3),
        Step(mode=Mode.EVAL, scalars={"loss": 4.0}, weight=3),
        Step(mode=Mode.EVAL, scalars={"loss": 8.0}),
    ]
    (finding,) = replay(build_run(run_path, steps), rules("AtTheEnd")).findings
    assert finding.evidence["subject"] == "EVAL"
    assert finding.value == pytest.approx(5.0)


def test_a_running_training_is_in_progress(run_path: Path, rules) -> None:
    with RunBuilder(run_path) as builder:
        for step in losses(3):
            builder.step(step)
        evaluation = replay(run_path, rules("AtTheEnd", "Steady"))
        assert not evaluation.ended
        assert [status.status for status in evaluation.statuses] == [Status.IN_PROGRESS, Status.ISSUES_FOUND]
        builder.leave()
    assert replay(run_path, rules("AtTheEnd")).ended


def test_a_killed_training_has_ended(run_path: Path, rules) -> None:
    evaluation = replay(build_run(run_path, losses(3), status=None), rules("AtTheEnd"))
    assert evaluation.ended
    assert len(evaluation.findings) == 1


def test_order_is_attempt_step_rule_worker(run_path: Path, rules) -> None:
    for _ in range(2):
        with RunBuilder(run_path, workers=3) as builder:
            for step in losses(2):
                builder.step(step)
            builder.leave()
    found = replay(run_path, rules("Noisy", "Steady")).findings
    keys = [(f.attempt, f.step, f.rule, f.worker) for f in found]
    assert keys == sorted(keys)
    assert len({finding.id for finding in found}) == len(found)


def test_a_rule_is_named_once() -> None:
    with pytest.raises(InvalidValueError, match="DeadRelu was named 2 times"):
        Engine([RuleSpec("DeadRelu"), RuleSpec("DeadRelu", {"window": 3})])


def test_a_run_without_steps_starves_every_rule(run_path: Path) -> None:
    evaluation = replay(build_run(run_path), default_rules())
    assert evaluation.findings == ()
    needy = {spec.name for spec in default_rules() if any(not need.optional for need in build_rule(spec).needs)}
    assert {status.status for status in evaluation.statuses if status.rule in needy} == {Status.STARVED}


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(NotARunError):
        replay(LocalStore(tmp_path))
