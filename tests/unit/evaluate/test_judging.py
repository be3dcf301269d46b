"""What an evaluator does where the store refuses in the middle of its last look, and what it writes of rules."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import termios
from pathlib import Path
from typing import Any, TextIO

import pytest

from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.errors import CompactedError, StoreError
from watchglass.evaluate import Judging, merge, replay, replay_part
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.run import open_run
from watchglass.store import FrameKind, LocalStore, RunReader, decode_observation, layout
from watchglass.testing import RunBuilder, Step, build_run

RULES = '''
from watchglass.records import Severity
from watchglass.rules import Rule, parameter, state

class Counts(Rule):
    """Says how many steps it saw."""
    seen: int = state(int)
    def check(self, view):
        self.seen += 1
        return ()
    def finish(self, view):
        yield self.finding(view, severity=Severity.WARNING, subject="last", message=f"saw {self.seen}")

class Limited(Rule):
    """Has parameters."""
    limit: float = parameter(1.0)
    names: tuple[str, ...] = parameter(())
    window: int = parameter(4)
    def check(self, view):
        return ()

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


def opened(store: LocalStore, specs: tuple[RuleSpec, ...], **more: Any) -> Evaluator:
    evaluator = Evaluator(EvaluatorConfig(store.location, None, specs, poll_s=0.001), store=store, **more)
    evaluator.open(lambda seconds: False, patience_s=0.0)
    while evaluator.turn():
        pass
    return evaluator


def steps(count: int) -> list[Step]:
    return [Step(scalars={"loss": float(n)}) for n in range(count)]


def test_what_is_evaluated_again_at_the_end_is_evaluated_to_its_end(run_path: Path, rules: Any) -> None:
    """Segments give way to a generation at the rules' last word, and the store refuses while all is read again."""

    class Refusing(LocalStore):
        appends = False
        reads = 0
        refuses = False

        def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
            if self.refuses and layout.parse_segment(path):
                self.reads += 1
                if self.reads == 3:
                    raise StoreError("the store is unreachable")
            return super().read(path, start, end)

    class GivesWay(Judging):
        def end(self, is_active: Any) -> bool:
            if not store.refuses:
                store.refuses = True
                raise CompactedError("it gave way")
            return super().end(is_active)

    store = Refusing(run_path)
    build_run(store, steps(60), steps_per_flush=1)
    evaluator = opened(store, rules("Counts"), judging=GivesWay)
    evaluator.finish()
    assert store.reads > 4
    assert [finding.message for finding in evaluator.evaluation().findings] == ["saw 60"]
    assert evaluator.evaluation().ended


def test_statuses_have_the_parameters_that_differ_from_their_defaults(run_path: Path, rules: Any) -> None:
    """As plain JSON, so that they are the same where they are read back."""
    store = LocalStore(run_path)
    build_run(store, steps(3))
    (spec,) = rules("Limited")
    specs = (RuleSpec(spec.name, {"limit": 2.5, "names": ("a", "b"), "window": 4}), *rules("Counts"))
    evaluator = opened(store, specs)
    evaluator.finish()
    wanted = {"Limited": {"limit": 2.5, "names": ["a", "b"]}, "Counts": {}}
    written = open_run(run_path).journal.statuses
    parts = [replay_part(run_path, EvaluatorConfig(store.location, None, specs))]
    for statuses in (
        written,
        evaluator.evaluation().statuses,
        replay(store, specs).statuses,
        merge(parts, specs).statuses,
    ):
        assert {status.rule: status.parameters for status in statuses} == wanted
    assert len({*written}) == 2


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


def evaluated(run: Path, output: TextIO) -> None:
    evaluator = Evaluator(EvaluatorConfig(str(run), None, (RuleSpec("ExplodingTensor"),)), output=output)
    evaluator.open(lambda seconds: False, patience_s=0.0)
    evaluator.finish()


@pytest.mark.parametrize(("workers", "sick", "where"), [(1, 0, ""), (2, 1, " on worker_1"), (2, 0, " on worker_0")])
def test_a_line_names_the_rank_where_there_are_several(run_path: Path, workers: int, sick: int, where: str) -> None:
    last = [Step(scalars={"loss": float("nan") if rank == sick else 1.0}, workers=(rank,)) for rank in range(workers)]
    build_run(run_path, [*steps(2), *last], workers=workers)
    said = io.StringIO()
    evaluated(run_path, said)
    (line,) = [line for line in said.getvalue().splitlines() if "ExplodingTensor" in line]
    assert line == f"watchglass: error: the loss became NaN at step 2 (ExplodingTensor{where})"


def test_a_finding_is_one_line_of_a_terminal_with_its_rule(run_path: Path) -> None:
    build_run(run_path, [*steps(2), Step(scalars={"loss": float("nan")})])
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    with open(ours, "rb", buffering=0) as read, open(theirs, "w") as terminal:
        evaluated(run_path, terminal)
        said = read.read(4096).decode().splitlines()
    (line,) = [line for line in said if "ExplodingTensor" in line]
    assert line == "watchglass: error: the loss bec… (ExplodingTensor)"
