"""However a run is cut into workers and rules, the parts put together say what one engine over all says."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from synthetic_steps import MODULES, training
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.evaluate import PartialEvaluation, merge, replay, replay_part
from watchglass.records import Mode
from watchglass.testing import RunBuilder, Step

#: Sequences to try; the environment asks for more.
_MANY = int(os.environ.get("WATCHGLASS_TEST_EXAMPLES", "25"))

RULES = '''
from watchglass.records import Severity
from watchglass.rules import Needs, Rule, state
from watchglass.records import Role

class Noisy(Rule):
    """Finds something new at every step, and more than are kept."""
    def check(self, view):
        for number in range(9):
            severity = Severity.WARNING if view.scalar("loss") > 1 else Severity.INFO
            yield self.finding(view, severity=severity, subject=f"{view.mode_step} {number}", message="noise")

class Raises(Rule):
    """Raises where the loss is high."""
    def check(self, view):
        if view.scalar("loss") > 2:
            raise ValueError("too high")
        return ()

class RaisesAtTheEnd(Rule):
    """Raises when it is asked for its last word."""
    def check(self, view):
        return ()
    def finish(self, view):
        if view.scalar("loss") > 1.5:
            raise ValueError("too late")
        yield self.finding(view, severity=Severity.INFO, subject="last", message=f"ended at {view.mode_step}")

class Choosy(Rule):
    """Applies to some."""
    def check(self, view):
        return ()
    def applicable(self, view):
        return f"nothing to say of {view.worker}" if view.scalar("loss") < 1 else ""

class Hungry(Rule):
    """Needs what few record."""
    needs = (Needs(scalars=("temperature",)), Needs(role=Role.GRADIENT, max_interval=4))
    def check(self, view):
        return ()

class Norms(Rule):
    """Compares ranks, by two statistics."""
    needs = (Needs(role=Role.GRADIENT, statistics=("rms", "max")),)
    def check_step(self, step):
        rows = [view.statistics(Role.GRADIENT) for view in step.views]
        value = float(sum((each.rms * each.max).sum() for each in rows))
        yield self.finding(step, severity=Severity.WARNING, subject=f"{step.mode_step}", message="seen", value=value)

class Undeclared(Rule):
    """Looks at what others declare."""
    needs = (Needs(role=Role.WEIGHT, statistics=("l2",)),)
    def check(self, view):
        yield self.finding(view, severity=Severity.WARNING, message="l2", value=float(view.statistics().l2.sum()))
        view.statistics().max

class Repeats(Rule):
    """Finds the same at every step, and at the end."""
    seen: int = state(int)
    def check(self, view):
        self.seen += 1
        yield self.finding(view, severity=Severity.WARNING, subject="same", message="again", value=self.seen)
    def finish(self, view):
        yield self.finding(view, severity=Severity.WARNING, subject="same", message="at the end")
'''
NAMES = ("Noisy", "Raises", "RaisesAtTheEnd", "Choosy", "Hungry", "Repeats", "Undeclared")
#: Sees all workers at once, and so is a part with all of them.
JOINT = "Norms"
CAPTURED = training(20, due=lambda step: step % 5 == 0)


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[int, str | None, list[tuple[int, float, bool]]]]:
    """Per attempt: workers, how they end, and (steps, loss, whether tensors are captured) of each."""
    attempts = []
    for _ in range(draw(st.integers(1, 3))):
        workers = draw(st.integers(1, 3))
        ended = draw(st.sampled_from(["finished", "failed", None]))
        courses = [
            (draw(st.integers(0, 20)), draw(st.sampled_from([0.5, 1.2, 1.8, 3.0])), draw(st.booleans()))
            for _ in range(workers)
        ]
        attempts.append((workers, ended, courses))
    return attempts


@st.composite
def partitions(draw: st.DrawFn) -> list[tuple[list[str], list[int]]]:
    """Workers and rules of each part: workers fall into groups, each of which has its own groups of rules."""
    parts = []
    teams = [draw(st.integers(0, 2)) for _ in range(3)]
    for team in sorted(set(teams)):
        workers = [f"worker_{rank}" for rank in range(3) if teams[rank] == team]
        bundles = [draw(st.integers(0, 2)) for _ in NAMES]
        parts += [(workers, [n for n, b in enumerate(bundles) if b == bundle]) for bundle in sorted(set(bundles))]
    return draw(st.permutations(parts))


def write(path: Path, attempts: list[tuple[int, str | None, list[tuple[int, float, bool]]]], open_: ExitStack) -> None:
    """The last attempt runs for as long as ``open_`` does, where it was not left."""
    for number, (workers, ended, courses) in enumerate(attempts):
        last = number == len(attempts) - 1
        builder = RunBuilder(path, modules=MODULES, workers=workers)
        if last:
            open_.enter_context(builder)
        for rank, (steps, loss, captured) in enumerate(courses):
            for n in range(steps):
                arrays = CAPTURED[n].statistics if captured else {}
                step = Step(mode=Mode.EVAL if n % 7 == 6 else Mode.TRAIN, scalars={"loss": loss}, statistics=arrays)
                builder.workers[rank].step(step)
        builder.flush()
        if ended is not None:
            builder.leave(ended)
        elif not last:
            builder.close()


@pytest.mark.slow
@hypothesis_settings(max_examples=_MANY)
@given(attempts=runs(), partition=partitions(), running=st.booleans())
def test_parts_equal_the_whole(tmp_path_factory, attempts, partition, running: bool) -> None:
    folder: Path = tmp_path_factory.mktemp("parts")
    (folder / "rules.py").write_text(RULES)
    specs = tuple(RuleSpec(f"{folder}/rules.py:{name}") for name in (*NAMES, JOINT))
    path = folder / "run"
    config = EvaluatorConfig(str(path), None, specs)
    with ExitStack() as last_attempt:
        write(path, attempts, last_attempt)
        if not running:
            last_attempt.close()
        whole = replay(path, specs)
        parts = [replay_part(path, config, workers=workers, rules=rules) for workers, rules in partition]
        parts.append(replay_part(path, config, rules=[len(NAMES)]))
    sent = [PartialEvaluation.from_json(json.loads(json.dumps(part.to_json()))) for part in parts]
    merged = merge(sent, specs)
    assert [f.to_json() for f in merged.findings] == [f.to_json() for f in whole.findings]
    assert merged.statuses == whole.statuses
    assert (merged.train_steps, merged.ended, merged.run) == (whole.train_steps, whole.ended, whole.run)
    shutil.rmtree(folder)
