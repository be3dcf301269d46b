"""What an evaluator does where the store refuses in the middle of its last look, and what it writes of rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.errors import CompactedError, StoreError
from watchglass.evaluate import replay
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.records import Finding
from watchglass.store import FrameKind, LocalStore, RunReader, decode_observation
from watchglass.tables import AttemptEnd, Moment
from watchglass.testing import RunBuilder, Step, build_run

RULES = '''
from watchglass.records import Severity
from watchglass.rules import Rule, state

class Counts(Rule):
    """Says how many steps it saw."""
    seen: int = state(int)
    def check(self, view):
        self.seen += 1
        return ()
    def finish(self, view):
        yield self.finding(view, severity=Severity.WARNING, subject="last", message=f"saw {self.seen}")

class RaisesAtTheEnd(Rule):
    """Raises when it is asked for its last word."""
    def check(self, view):
        return ()
    def finish(self, view):
        raise ValueError("too late")
'''


@pytest.fixture
def rules(tmp_path: Path) -> Any:
    path = tmp_path / "rules.py"
    path.write_text(RULES)
    return lambda *names: tuple(RuleSpec(f"{path}:{name}") for name in names)


def opened(store: LocalStore, specs: tuple[RuleSpec, ...]) -> Evaluator:
    evaluator = Evaluator(EvaluatorConfig(store.location, None, specs, poll_s=0.001), store=store)
    evaluator.open(lambda seconds: False, patience_s=0.0)
    while evaluator.turn():
        pass
    return evaluator


def steps(count: int) -> list[Step]:
    return [Step(scalars={"loss": float(n)}) for n in range(count)]


def test_what_is_evaluated_again_at_the_end_is_evaluated_to_its_end(
    run_path: Path, rules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments give way to a generation at the rules' last word, and the store refuses while all is read again."""
    store = LocalStore(build_run(run_path, steps(60), steps_per_flush=1))
    evaluator = opened(store, rules("Counts"))
    polls: list[int] = []
    poll = RunReader.poll

    def refusing(self: RunReader, max_bytes: int = 0, *, full: bool = False) -> Any:
        polls.append(max_bytes)
        if len(polls) == 3:
            raise StoreError("the store is away")
        return poll(self, 400, full=full)

    def compacted(moment: Moment) -> list[Finding]:
        if not isinstance(moment, AttemptEnd):
            return show(moment)
        monkeypatch.setattr("watchglass.store.reader._SHARE", 400)
        monkeypatch.setattr(RunReader, "poll", refusing)
        raise CompactedError("it gave way")

    show = evaluator._judging.engine.show
    monkeypatch.setattr(evaluator._judging.engine, "show", compacted)
    evaluator.finish()
    assert len(polls) > 4
    assert [finding.message for finding in evaluator.evaluation().findings] == ["saw 60"]
    assert evaluator.evaluation().ended


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_rule_that_raises_at_the_end_is_written_down(run_path: Path, rules: Any, attempts: int) -> None:
    store = LocalStore(run_path)
    for _ in range(attempts):
        with RunBuilder(run_path) as builder:
            for step in steps(2):
                builder.step(step)
            builder.leave()
    evaluator = opened(store, rules("RaisesAtTheEnd"))
    evaluator.finish()
    frames = RunReader(store).journal()
    written = [decode_observation(frame.payload) for frame in frames if frame.kind == FrameKind.OBSERVATION]
    assert [(seen.kind, seen.attempt, seen.after) for seen in written] == [
        ("rule_error", attempt, (1, 0, 1)) for attempt in range(attempts)
    ]
    assert "ValueError: too late" in written[0].data["traceback"]
    assert evaluator.evaluation().statuses == replay(store, rules("RaisesAtTheEnd")).statuses
