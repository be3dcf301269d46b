"""Rules that hang, flood, or cannot read their data: no other rule is harmed, nothing is lost or doubled."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moments import Made
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.errors import PluginFileError, StoreError
from watchglass.evaluate import Judging, replay
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.engine.folding import MOST_FINDINGS
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.records import Observation, Status
from watchglass.store import FrameKind, LocalStore, RunReader, decode_finding, decode_observation, lease_holder
from watchglass.tables import StepView
from watchglass.testing import RunBuilder, Step, build_run

pytestmark = pytest.mark.own_process

RULES = '''
import time
import numpy as np
from watchglass.records import Role, Severity
from watchglass.rules import Needs, Rule, state

class Steady(Rule):
    """Finds the same at every step, and says how many it saw."""
    seen: int = state(int)
    def check(self, view):
        self.seen += 1
        yield self.finding(view, severity=Severity.WARNING, subject="same", message="again")
    def finish(self, view):
        yield self.finding(view, severity=Severity.WARNING, subject="last", message=f"saw {self.seen}")

class Hangs(Rule):
    """Finds something and then hangs, on one worker."""
    patience: float = 1e6
    def check(self, view):
        yield self.finding(view, severity=Severity.WARNING, subject=f"step {view.mode_step}", message="found")
        if view.mode_step == 3 and view.worker == "worker_1":
            time.sleep(self.patience)

class HangsAtTheEnd(Rule):
    """Hangs when asked for its last word."""
    def check(self, view):
        return ()
    def finish(self, view):
        while True:
            pass

class HangsWhenAsked(Rule):
    """Hangs when asked whether it applies."""
    def check(self, view):
        return ()
    def applicable(self, view):
        time.sleep(1e6)

class Floods(Rule):
    """Finds without end at every step."""
    def check(self, view):
        number = 0
        while True:
            number += 1
            yield self.finding(view, severity=Severity.WARNING, subject=f"{number}", message="more")

class Looks(Rule):
    """Looks at histograms, once it has counted the step."""
    needs = (Needs(role=Role.GRADIENT, statistics=("histogram",)),)
    seen: int = state(int)
    def check(self, view):
        self.seen += 1
        rows = view.statistics(Role.GRADIENT)
        if len(rows):
            rows.histograms
    def finish(self, view):
        yield self.finding(view, severity=Severity.WARNING, subject="last", message=f"saw {self.seen}")

class Peeks(Rule):
    """Looks at a statistic that it has not declared."""
    needs = (Needs(role=Role.GRADIENT, statistics=("mean",)),)
    def check(self, view):
        rows = view.statistics(Role.GRADIENT)
        assert np.isfinite(rows.mean).all() and np.isfinite(rows.finite).all()
        yield self.finding(view, severity=Severity.WARNING, message="declared", value=float(rows.rms[0]))

class Guesses(Rule):
    """Looks at statistics without having declared any."""
    needs = (Needs(scalars=("loss",)),)
    def check(self, view):
        return [] if view.captured else [self.finding(view, severity=Severity.WARNING, message="none")]

class Measures(Rule):
    """Has a baseline of a statistic that it has not declared."""
    needs = (Needs(statistics=("l2",)),)
    def check(self, view):
        view.baseline(("statistic", "l2", "gradient/fc.weight"))
        view.baseline(("statistic", "max", "gradient/fc.weight"))

class Exits(Rule):
    """Ends the program, or tries to."""
    def check(self, view):
        raise SystemExit(3)
'''
BUILT_FOR_EVER = '''
import time
from watchglass.rules import Rule
class Slow(Rule):
    """Takes for ever to be made."""
    def __post_init__(self):
        time.sleep(1e6)
    def check(self, view):
        return ()
'''


@pytest.fixture
def rules(tmp_path: Path):
    path = tmp_path / "rules.py"
    path.write_text(RULES)
    return lambda *names: tuple(RuleSpec(f"{path}:{name}") for name in names)


def losses(count: int) -> list[Step]:
    return [Step(scalars={"loss": float(n)}) for n in range(count)]


def evaluated(store: LocalStore, specs: tuple[RuleSpec, ...], **options: Any) -> Evaluator:
    """Of a run that is over: an evaluator from beginning to end."""
    made = Made()
    evaluator = Evaluator(
        EvaluatorConfig(store.location, None, specs, **options), store=store, judging=made.by(Judging)
    )
    try:
        # One that was killed held the lease, in this very process.
        evaluator.open(lambda seconds: False, patience_s=0.0, gone=lease_holder(store))
        while evaluator.turn():
            pass
        evaluator.finish()
    finally:
        made.judging.engine.close()
    return evaluator


def journal(store: LocalStore, kind: str) -> list[Observation]:
    frames = RunReader(store).journal()
    seen = [decode_observation(frame.payload) for frame in frames if frame.kind == FrameKind.OBSERVATION]
    return [observation for observation in seen if observation.kind == kind]


def test_a_rule_that_hangs_is_ended_and_the_others_go_on(run_path: Path, rules) -> None:
    evaluation = replay(
        build_run(run_path, losses(6), workers=2), rules("Hangs", "HangsAtTheEnd", "HangsWhenAsked", "Steady"),
        rule_timeout_s=0.1,
    )  # fmt: skip
    hangs, at_the_end, when_asked, steady = evaluation.statuses
    assert hangs.status is Status.ERROR
    assert hangs.reason.startswith("took longer than 0.1 s at TRAIN step 3 of worker_1, in:\n")
    assert "time.sleep(self.patience)" in hangs.reason
    assert at_the_end.status is Status.ERROR
    assert "in finish" in at_the_end.reason
    assert when_asked.status is Status.ERROR
    assert "in applicable" in when_asked.reason
    assert steady.status is Status.ISSUES_FOUND
    assert [f.count for f in evaluation.findings if f.rule == "Steady"] == [6, 6, 1, 1]
    by_worker = {w: [f.step for f in evaluation.findings if (f.rule, f.worker) == ("Hangs", w)] for w in
                 ("worker_0", "worker_1")}  # fmt: skip
    # What it found in the call that never ended does not count: another evaluation may not even make that call.
    assert by_worker == {"worker_0": [0, 1, 2, 3, 4, 5], "worker_1": [0, 1, 2]}


def test_a_replay_stops_it_at_the_same_place_without_asking(run_path: Path, rules) -> None:
    store = LocalStore(build_run(run_path, losses(6), workers=2))
    live = evaluated(store, rules("Hangs", "Steady"), rule_timeout_s=0.1).evaluation()
    (seen,) = journal(store, "rule_timed_out")
    assert (seen.attempt, seen.after, seen.data["rule"], seen.data["worker"]) == (0, (3, 0, 3), "Hangs", "worker_1")
    replayed = replay(store, rules("Hangs", "Steady"), rule_timeout_s=1e6)  # would never come back
    assert [f.to_json() for f in replayed.findings] == [f.to_json() for f in live.findings]
    assert replayed.statuses == live.statuses
    # Another evaluator goes the same way, and writes nothing new.
    before = len(RunReader(store).journal())
    assert evaluated(store, rules("Hangs", "Steady"), rule_timeout_s=1e6).evaluation().statuses == live.statuses
    after = RunReader(store).journal()[before:]
    assert [frame for frame in after if frame.kind != FrameKind.STATUS] == []
    # One with other parameters, or whose code was mended, is another rule.
    mended = (RuleSpec(rules("Hangs")[0].name, {"patience": 0.0}),)
    assert replay(store, mended, rule_timeout_s=60).statuses[0].status is Status.ISSUES_FOUND


def test_a_rule_that_takes_for_ever_to_be_built_is_refused(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(BUILT_FOR_EVER)
    with pytest.raises(PluginFileError, match=r"must be built within 0.1 s but took longer"):
        Engine([RuleSpec(f"{tmp_path}/slow.py:Slow")], rule_timeout_s=0.1)


def test_a_rule_cannot_end_the_process(run_path: Path, rules) -> None:
    exits, steady = replay(build_run(run_path, losses(3)), rules("Exits", "Steady")).statuses
    assert exits.status is Status.ERROR
    assert "SystemExit: 3" in exits.reason
    assert steady.status is Status.ISSUES_FOUND


def test_findings_without_end_are_cut_at_each_step(run_path: Path, rules) -> None:
    evaluation = replay(build_run(run_path, losses(3)), rules("Floods", "Steady"))
    floods, steady = evaluation.statuses
    assert floods.status is Status.ISSUES_FOUND
    dropped = int(floods.reason.split()[0].replace(",", ""))
    assert dropped == 3 * (4097 - MOST_FINDINGS)
    assert sum(finding.rule == "Floods" for finding in evaluation.findings) == MOST_FINDINGS
    assert steady.status is Status.ISSUES_FOUND


def _captured(count: int) -> list[Step]:
    gradient = np.random.default_rng(0).normal(size=(8, 8))
    return [Step(scalars={"loss": 1.0}, statistics={"gradient/fc.weight": gradient}) for _ in range(count)]


def test_a_store_that_refuses_histograms_is_no_fault_of_the_rule(
    run_path: Path, rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    from watchglass.tables.sources import LiveBatch

    build_run(run_path, _captured(6), modules={"fc": "Linear"})
    whole, tries = LiveBatch.histograms, [0]

    def histograms(self):
        tries[0] += 1
        if tries[0] in (2, 3, 5, 6, 9):
            raise StoreError("the store is unreachable")
        return whole(self)

    monkeypatch.setattr(LiveBatch, "histograms", histograms)
    store = LocalStore(run_path)
    evaluator = Evaluator(EvaluatorConfig(store.location, None, rules("Looks", "Steady"), poll_s=0.001), store=store)
    evaluator.open(lambda seconds: False, patience_s=0.0)
    for _ in range(40):
        evaluator.turn()
    evaluator.finish()
    assert tries[0] > 9
    evaluation = evaluator.evaluation()
    assert [status.status for status in evaluation.statuses] == [Status.ISSUES_FOUND, Status.ISSUES_FOUND]
    assert [f.message for f in evaluation.findings] == ["again", "saw 6", "saw 6"]
    assert next(f.count for f in evaluation.findings if f.message == "again") == 6


def test_a_rule_reads_the_statistics_that_it_declares_whatever_other_rules_read(run_path: Path, rules) -> None:
    build_run(run_path, _captured(3), modules={"fc": "Linear"})
    together = replay(run_path, [RuleSpec("UnchangedTensor"), *rules("Peeks", "Guesses", "Measures", "Looks")])
    assert together.statuses[-1].status is Status.ISSUES_FOUND
    for status, spec in zip(together.statuses[1:-1], rules("Peeks", "Guesses", "Measures"), strict=True):
        assert status.status is Status.ERROR
        assert replay(run_path, [spec]).statuses == (status,)
    peeks, guesses, measures = (status.reason for status in together.statuses[1:-1])
    assert "Peeks reads the statistic 'rms' but does not declare it; add it to its needs" in peeks
    assert "Guesses reads statistics of tensors but its needs declare none; add what it reads" in guesses
    assert "Measures reads the statistic 'max' but does not declare it" in measures


def rules_alive() -> int:
    gc.collect()
    return sum(type(each).__name__ == "Steady" for each in gc.get_objects())


@pytest.mark.parametrize("killed", [False, True])
def test_old_attempts_are_let_go_of(run_path: Path, rules, killed: bool) -> None:
    store, made = LocalStore(run_path), Made()
    evaluator: Evaluator | None = None
    others = rules_alive()
    others_views = [each for each in gc.get_objects() if isinstance(each, StepView)]
    for attempt in range(4):
        with RunBuilder(run_path, workers=2) as builder:
            if evaluator is None:
                evaluator = Evaluator(
                    EvaluatorConfig(store.location, None, rules("Steady")), store=store, judging=made.by(Judging)
                )
                evaluator.open(lambda seconds: False, patience_s=0.0)
            for step in losses(5):
                builder.step(step)
            if attempt < 3 and killed:
                builder.flush()
            else:
                builder.leave()
            while not made.judging.drained():  # also what a quick look would find later
                pass
            evaluator.turn()
    assert evaluator is not None
    # Of workers that were killed something may still come while the next attempt goes on.
    kept = {2, 3} if killed else {3}
    assert rules_alive() - others == 2 * len(kept)
    assert {w.attempt for w in made.judging.follower.workers.values() if w.views} == kept
    known = {id(each) for each in others_views}
    views = {each.attempt for each in gc.get_objects() if isinstance(each, StepView) and id(each) not in known}
    assert views == kept
    evaluator.finish()
    live = evaluator.evaluation()
    assert [(f.attempt, f.worker, f.message) for f in live.findings] == [
        (attempt, worker, message)
        for attempt in range(4)
        for worker_message in [[("worker_0", "again"), ("worker_1", "again"), ("worker_0", "saw 5"),
                                ("worker_1", "saw 5")]]
        for worker, message in worker_message
    ]  # fmt: skip
    replayed = replay(store, rules("Steady"))
    assert [f.to_json() for f in live.findings] == [f.to_json() for f in replayed.findings]
    assert live.statuses == replayed.statuses


class Killed(BaseException):
    """The process is no more."""


@pytest.mark.slow
def test_killed_at_any_record_and_started_again(tmp_path: Path, rules) -> None:
    """An evaluator that is killed as it writes any record of its journal, and another after it, leave the same."""
    specs = rules("Steady", "Hangs", "Looks")

    def frames(store: LocalStore) -> list[tuple[str, Any]]:
        rows = RunReader(store).journal()
        written = [decode_finding(row.payload) for row in rows if row.kind == FrameKind.FINDING]
        found = {finding.id: finding for finding in written}
        # A finding that grew is written again; a new one only once.
        first = [finding.id for finding in written if finding.count == 1]
        assert len(first) == len(set(first))
        timed_out = [seen.data for seen in journal(store, "rule_timed_out")]
        return [*((f.id, f.to_json()) for f in found.values()), *(("timed out", data) for data in timed_out)]

    from watchglass.store import JournalWriter

    def run(path: Path) -> LocalStore:
        return LocalStore(build_run(path, losses(6), workers=2))

    write = JournalWriter.write
    whole = run(tmp_path / "whole")
    evaluation = evaluated(whole, specs, rule_timeout_s=0.05).evaluation()
    assert evaluation.ended
    wanted = sorted(row[1].get("message", "") + str(row[1].get("step", "")) for row in frames(whole))
    killed = at = 0
    while killed == at:
        store = run(tmp_path / f"killed_{at}")
        left = at

        def written(self, records, store=store):
            nonlocal left, killed
            for record in records:
                if left == 0:
                    killed, left = killed + 1, -1
                    raise Killed
                left -= 1
                write(self, [record])

        JournalWriter.write = written
        try:
            evaluated(store, specs, rule_timeout_s=0.05)
        except Killed:
            pass
        finally:
            JournalWriter.write = write
        again = evaluated(store, specs, rule_timeout_s=0.05).evaluation()
        assert [f.message for f in again.findings] == [f.message for f in evaluation.findings]
        assert sorted(r[1].get("message", "") + str(r[1].get("step", "")) for r in frames(store)) == wanted
        at += 1
    assert killed > 10
