"""Windows: stretches of time with the rows that streams wrote, live and in replay alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moments import FollowedCase
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.errors import InvalidValueError, PluginFileError
from watchglass.evaluate import Follower, PartialEvaluation, merge, replay, replay_part
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.records import ROW_KINDS, Field, Observation, RowKey, RowKind, Status
from watchglass.rules import Rule, Windows
from watchglass.run import open_run
from watchglass.store import (
    FrameKind,
    JournalWriter,
    LocalStore,
    StreamWriter,
    encode_frame,
    encode_header,
    layout,
    scan,
)
from watchglass.tables.stored_statistics import StoredStatistics
from watchglass.testing import Batch, RunBuilder, Silence, Step, build_run

SECOND = 1_000_000_000
SAMPLES = RowKind("readings", 92, (Field("metric", "text"), Field("value", "f64")), RowKey.TIME)
SPANS = RowKind("spans", 93, (Field("stop_ns", "u64"),), RowKey.TIME)

RULES = '''
from watchglass.records import Severity
from watchglass.rules import Needs, Rule, Windows, parameter, state

class Busy(Rule):
    """Says what each window holds."""
    streams = Windows(kinds=("readings",), length_s=10)
    seen: int = state(int)
    def check_window(self, window):
        self.seen += 1
        rows = window.rows("readings")
        what = f"{window.stream} {window.start_ns / 1e9:g} to {window.end_ns / 1e9:g}: {rows['value'].tolist()}"
        what += " lost" * window.lost + f" {window.last}"
        yield self.finding(window, severity=Severity.WARNING, subject=f"{self.seen}", message=what)

class Both(Rule):
    """Sees steps of all workers, windows, and ticks."""
    needs = (Needs(scalars=("loss",)), Needs(observations=("tick",), optional=True))
    streams = Windows(kinds=("readings", "spans"), length_s=20)
    seen: list = state(list)
    def check_step(self, step):
        self.seen.append(f"step {step.mode_step} {[recent.start_ns // 10**9 for recent in step.streams]}")
        return ()
    def check_window(self, window):
        self.seen.append(f"window {window.number} {len(window.rows('readings'))} {len(window.rows('spans'))}")
        return ()
    def tick(self, tick):
        self.seen.append(f"tick {tick.number}")
        return ()
    def finish(self, step):
        yield self.finding(step, severity=Severity.INFO, message=", ".join(self.seen))

class Views(Rule):
    """Says at each step of a worker from when to when there are rows of streams, and their values."""
    needs = (Needs(scalars=("loss",)),)
    streams = Windows(kinds=("readings",), length_s=10)
    def check(self, view):
        what = [
            (each.start_ns / 1e9, each.end_ns / 1e9, each.rows("readings")["value"].tolist()) for each in view.streams
        ]
        yield self.finding(view, severity=Severity.INFO, subject=f"{view.mode_step}", message=f"{what}")

class Finer(Views):
    """Says the same of shorter windows."""
    streams = Windows(kinds=("readings",), length_s=0.5)

class Raises(Rule):
    """Raises at the second window."""
    streams = Windows(kinds=("readings",), length_s=10)
    def check_window(self, window):
        if window.number:
            raise ValueError("no more")
        return ()
'''


ENDS = '''
from watchglass.records import Severity
from watchglass.rules import Rule, Windows, state

class Ends(Rule):
    """Says at its end how many windows it saw."""
    streams = Windows(kinds=("readings",), length_s=10)
    seen: int = state(int)
    def check_window(self, window):
        self.seen += 1
        return ()
    def finish(self, step):
        message = f"{self.seen} windows, {len(step.views)} workers"
        yield self.finding(step, severity=Severity.INFO, message=message)

class Never(Ends):
    """Does not apply."""
    def finish(self, step):
        return ()
    def applicable(self, step):
        return f"never after {len(step.views)} workers"
'''


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    """Two kinds by time, of which this release declares none."""
    kinds = {kind.number: kind for kind in (SAMPLES, SPANS)}
    ROW_KINDS.update(kinds)
    yield
    for number in kinds:
        del ROW_KINDS[number]


@pytest.fixture
def rules(tmp_path: Path) -> Any:
    path = tmp_path / "rules.py"
    path.write_text(RULES)
    return lambda *names: tuple(RuleSpec(f"{path}:{name}") for name in names)


def samples(*seconds_and_values: tuple[float, float], seconds: float = 10.0, stream: str = "system") -> Batch:
    return Batch({SAMPLES: [(at, "cpu", value) for at, value in seconds_and_values]}, seconds, stream)


def steps(count: int, seconds: float = 5.0, **more: Any) -> list[Step]:
    return [Step(scalars={"loss": 1.0}, seconds=seconds, **more) for _ in range(count)]


def alone(path: Path, *given: Step | Batch) -> Path:
    """A stored run of two workers that train by themselves."""
    with RunBuilder(path, modules={"fc": "Linear"}, workers=2, alone=True) as builder:
        for each in given:
            builder.batch(each) if isinstance(each, Batch) else builder.step(each)
        builder.leave()
    return path


def noted(path: Path) -> list[tuple[Any, ...]]:
    """Place, stream and seconds of what was noted of streams."""
    rows = open_run(path).journal.observations
    known = [seen for seen in rows if seen.kind in ("watermark", "streams_ended")]
    return [(seen.steps, seen.data.get("stream"), seen.data.get("time_ns", 0) / SECOND) for seen in known]


def test_a_window_is_shown_once_the_watermark_has_passed_its_end(run_path: Path, rules: Any) -> None:
    case = FollowedCase(run_path, rules("Busy"))
    case.write(samples((0, 1), (8, 2), (9.5, 3)))  # 1 to 11 s
    assert case.messages("Busy") == ["system 0 to 10: [1.0, 2.0] None"]
    case.write(*steps(1), samples((1, 4), seconds=5))
    assert len(case.messages("Busy")) == 1
    case.write(samples(seconds=3))
    assert len(case.messages("Busy")) == 1
    case.write(samples(seconds=1.5))  # to 20.5 s
    last = "JointStep(TRAIN step 0 of 1 views)"
    assert case.messages("Busy")[1:] == [f"system 10 to 20: [3.0, 4.0] {last}"]
    case.write(samples((0, 5), seconds=1), *steps(1))
    case.end()
    last = "JointStep(TRAIN step 1 of 1 views)"
    assert case.messages("Busy")[2:] == [f"system 20 to 21.5: [5.0] lost {last}"]
    assert noted(run_path) == [
        (0, "system", 11.0), (1, "system", 20.5), (2, "system", 21.5), (2, None, 0.0),
    ]  # fmt: skip
    assert [found.step for found in replay(run_path, case.specs).findings] == [-1, 0, 1]


def test_what_windows_show_ahead_of_all_steps_is_a_status_soon(run_path: Path, rules: Any) -> None:
    case = FollowedCase(run_path, rules("Busy"))
    case.write()
    case.write(samples((0, 1)))
    case.clock.advance(case.store.policy.intervals().liveness_s)
    case.write()
    assert [status.status for status in open_run(run_path).journal.statuses] == [Status.ISSUES_FOUND]
    assert len(case.evaluator.snapshot().findings) == 1
    case.end()


def test_a_window_without_rows_is_left_out_and_rows_of_other_kinds_are_not_shown(run_path: Path, rules: Any) -> None:
    rows = {SAMPLES: [(0.0, "cpu", 1.0), (55.0, "cpu", 2.0)], SPANS: [(30.0, 7)]}
    run = build_run(run_path, [Batch(rows, seconds=60), samples((3, 9), stream="disk"), *steps(1)])
    assert [f.message.partition(" Joint")[0] for f in replay(run, rules("Busy")).findings] == [
        "disk 0 to 10: [9.0]", "system 0 to 10: [1.0]", "system 50 to 60: [2.0]",
    ]  # fmt: skip


def test_windows_of_a_run_that_was_not_followed_come_in_the_order_of_the_clocks(run_path: Path, rules: Any) -> None:
    """Whatever came first: streams behind all steps, or ahead of them."""
    batches = [samples((1, float(n))) for n in range(5)]
    late = build_run(run_path, [*steps(8), *batches], workers=2)
    early = build_run(run_path.with_name("early"), [*batches, *steps(8)], workers=2)
    found = []
    for run in (late, early):
        findings = replay(run, rules("Both", "Views")).findings
        found.append([(f.rule, f.worker, f.message) for f in findings])
    assert found[0] == found[1]
    (saw,) = [message for rule, _, message in found[0] if rule == "Both"]
    views = [(worker, message) for rule, worker, message in found[0] if rule == "Views"]
    assert saw == (
        "step 0 [], step 1 [], step 2 [], window 0 2 0, step 3 [0], step 4 [0], step 5 [0], step 6 [0], "
        "window 1 2 0, step 7 [20], window 2 1 0"
    )
    assert views[:2] == [("worker_0", "[]"), ("worker_1", "[]")]
    assert views[-1] == ("worker_1", "[(30.0, 41.0, [3.0])]")  # from 30 s on, with one sample


def test_steps_windows_and_ticks_are_one_sequence_live_and_in_replay(run_path: Path, rules: Any) -> None:
    """Streams that come late, between steps, and in the hands of another evaluator."""
    case = FollowedCase(run_path, rules("Both", "Busy", "Views"), workers=2)
    case.write(*steps(3))
    case.write(samples((1, 1)), samples((1, 2)), samples((1, 3)))
    case.again()
    case.write(*steps(2), samples((1, 4), stream="disk"), samples((0, 5)), samples((0, 5)))
    case.again()
    case.write()
    case.write(*steps(1))
    assert case.messages("Views")[-1] == "[(40.0, 51.0, [5.0]), (0.0, 11.0, [4.0])]"  # of system, and of disk
    case.end()
    (message,) = case.messages("Both")
    assert message.startswith("step 0 [], step 1 [], step 2 [], window 0 2 0, step 3 [0], step 4 [0], ")


_GIVEN = [
    [samples((0, 1), (8, 2), (11, 3), seconds=13), *steps(1, seconds=14)],  # 1 to 14 s
    [samples((1, 4), seconds=3), *steps(1, seconds=3)],  # to 17 s
    [samples((2.5, 5), (4, 6), seconds=5), *steps(1, seconds=5)],  # to 22 s
]


def test_a_step_shows_rows_up_to_the_watermark_that_ended_the_last_window_of_the_rule(
    run_path: Path, rules: Any
) -> None:
    case = FollowedCase(run_path, rules("Views", "Finer"))
    for batch in _GIVEN:
        case.write(*batch)
    assert case.messages("Views") == [
        "[(0.0, 14.0, [1.0, 2.0, 3.0])]", "[(0.0, 14.0, [1.0, 2.0, 3.0])]", "[(10.0, 22.0, [3.0, 4.0, 5.0, 6.0])]",
    ]  # fmt: skip
    assert case.messages("Finer") == ["[(12.0, 14.0, [3.0])]", "[(15.0, 17.0, [4.0])]", "[(21.0, 22.0, [6.0])]"]
    assert noted(run_path) == [(0, "system", 14.0), (1, "system", 17.0), (2, "system", 22.0)]
    case.end()


def test_the_rows_that_a_rule_sees_at_a_step_do_not_depend_on_the_other_rules(run_path: Path, rules: Any) -> None:
    run = build_run(run_path, [each for batch in _GIVEN for each in batch])
    both, alone = replay(run, rules("Views", "Finer")), replay(run, rules("Views"))
    assert [f.message for f in alone.findings] == [f.message for f in both.findings if f.rule == "Views"]
    assert len(alone.findings) == 3


def rows_at_steps(case: FollowedCase) -> dict[str, list[str]]:
    """What each worker saw of streams at its steps, in their order."""
    found: dict[str, list[str]] = {}
    for each in case.evaluator.evaluation().findings:
        if each.rule == "Views":
            found.setdefault(each.worker, []).append(each.message)
    return found


def test_a_worker_that_trains_by_itself_sees_rows_up_to_the_watermark_noted_before_its_step(
    run_path: Path, rules: Any
) -> None:
    """Wherever the others are, for an evaluator that begins again in the middle, and for a worker that comes late."""
    case = FollowedCase(run_path, rules("Views", "Busy"), workers=3, alone=True)
    case.write(*steps(2, workers=[0]))
    case.write(samples((1, 1)))  # 1 to 11 s
    case.write(*steps(1, workers=[0]), *steps(1, workers=[1]))
    case.again()
    case.write(samples((1, 2)), *steps(1, seconds=20, workers=[0]))  # to 21 s
    case.write(*steps(1, workers=[1]))
    case.again()
    case.write(*steps(1, workers=[2]))
    first, second = "[(0.0, 11.0, [1.0])]", "[(10.0, 21.0, [2.0])]"
    assert rows_at_steps(case) == {
        "worker_0": ["[]", "[]", first, second], "worker_1": [first, second], "worker_2": [second],
    }  # fmt: skip
    # A window is shown once, with the newest step of all of them.
    last, then = (f"JointStep(TRAIN step {number} of 1 views)" for number in (1, 2))
    assert case.messages("Busy") == [f"system 0 to 10: [1.0] {last}", f"system 10 to 20: [2.0] {then}"]
    case.end()
    seen = open_run(run_path).journal.observations
    places: dict[str, int] = {}
    at_marks = []
    for each in seen:
        assert all(places.get(worker, 0) < steps for worker, steps in each.data.get("alone", {}).items())
        places |= each.data.get("alone", {})
        at_marks += [{**places}] * (each.kind in ("watermark", "streams_ended"))
    assert at_marks == [
        {"worker_0": 2}, {"worker_0": 3, "worker_1": 1}, {"worker_0": 4, "worker_1": 2, "worker_2": 1},
    ]  # fmt: skip


@pytest.mark.parametrize("together", [True, False])
def test_rows_that_come_late_are_not_shown_before_steps_at_which_an_earlier_evaluator_found_something(
    run_path: Path, rules: Any, together: bool
) -> None:
    """Whatever the clocks say, since what it found is in the journal."""
    case = FollowedCase(run_path, rules("Views", "Busy"), workers=2, alone=not together)
    case.write(*steps(4))
    case.builder.batch(samples((1, 1)))  # to 11 s; the steps go on to 21 s
    case.again()
    case.write(*steps(1))
    expected = [*["[]"] * 4, "[(0.0, 11.0, [1.0])]"]
    assert rows_at_steps(case) == {"worker_0": expected, "worker_1": expected}
    case.end()
    found = case.evaluator.evaluation().findings
    assert {each.id: each for each in open_run(run_path).journal.findings} == {each.id: each for each in found}


def test_workers_that_train_by_themselves_see_rows_in_the_order_of_the_clocks_without_a_follower(
    run_path: Path, rules: Any
) -> None:
    """Whatever was written first, and in whatever pieces it is read; windows come once, not for each worker."""
    large = {"more": {"text": "x" * 60_000}}  # so that a poll reads few steps
    slow, fast = steps(2, seconds=24, workers=[1], facts=large), steps(6, workers=[0], facts=large)
    batches = [samples((1, float(n))) for n in range(2)]  # to 11 and 21 s
    first, second = "[(0.0, 11.0, [0.0])]", "[(10.0, 21.0, [1.0])]"
    for number, given in enumerate(([*slow, *fast, *batches], [*batches, *fast, *slow])):
        path = alone(run_path.with_name(f"run_{number}"), *given)
        whole = replay(path, rules("Views", "Busy")).findings
        assert [(each.worker, each.message) for each in whole if each.rule == "Views"] == [
            ("worker_0", "[]"), ("worker_1", second), ("worker_0", first), ("worker_1", second), ("worker_0", first),
            *[("worker_0", second)] * 3,
        ]  # fmt: skip
        assert [each.message for each in whole if each.rule == "Busy"] == [
            "system 0 to 10: [0.0] JointStep(TRAIN step 0 of 1 views)",
            "system 10 to 20: [1.0] JointStep(TRAIN step 2 of 1 views)",
        ]  # fmt: skip
        follower = Follower(LocalStore(path))
        engine = Engine(rules("Views", "Busy"), run_id=follower.run_id)
        follower.cut(engine.windows)
        for _ in range(20):  # one worker at a time
            for moment in follower.poll(full=True, max_bytes=1):
                engine.show(moment)
        for moment in follower.drain():
            engine.show(moment)
        for moment in follower.ends():
            engine.show(moment)
        assert [each.to_json() for each in engine.findings] == [each.to_json() for each in whole]


def test_a_worker_that_trains_by_itself_sees_no_rows_of_a_lost_stream_or_of_another_attempt(
    run_path: Path, rules: Any
) -> None:
    case = FollowedCase(run_path, rules("Views"), workers=2, alone=True)
    with StreamWriter(case.store, 0, "disk") as disk:
        disk.write({SAMPLES: [(2 * SECOND, "cpu", 2.0)]}, 11 * SECOND)
        case.write(samples((1, 1)), *steps(1, seconds=20))
    case.wait(1.0, 1.0)
    case.write(*steps(1))
    case.evaluator.close()
    case.builder.close()
    case.builder = RunBuilder(run_path, workers=2, alone=True)
    case.builder.step(steps(1)[0])
    case.builder.batch(samples((1, 3)))
    case.again()
    case.write(*steps(1))
    of_system, of_disk = "(0.0, 11.0, [1.0])", "(0.0, 11.0, [2.0])"
    expected = [f"[{of_disk}, {of_system}]", f"[{of_system}]", "[]", "[(0.0, 11.0, [3.0])]"]
    assert rows_at_steps(case) == {"worker_0": expected, "worker_1": expected}
    case.end()


def test_what_comes_after_the_last_word_of_the_evaluator_changes_nothing(run_path: Path, rules: Any) -> None:
    case = FollowedCase(run_path, rules("Busy"))
    case.write(samples((1, 1)), *steps(2))
    case.builder.leave()
    case.write()
    case.evaluator.finish()
    case.builder.batch(samples((1, 2), seconds=30))
    case.builder.batch(samples((1, 2), seconds=30, stream="disk"))
    case.builder.close()
    case.assert_replay_equals_live()
    assert case.messages("Busy") == ["system 0 to 10: [1.0] JointStep(TRAIN step 0 of 1 views)"]


def test_an_open_window_of_a_run_that_goes_on_is_not_shown(run_path: Path, rules: Any) -> None:
    found = []
    with RunBuilder(run_path) as builder:
        builder.step(steps(1, seconds=20)[0])
        builder.batch(samples((1, 1), (12, 2), seconds=15))  # 1 to 16 s
        found.append(replay(run_path, rules("Busy")))
        builder.leave()
    found.append(replay(run_path, rules("Busy")))
    assert [evaluation.ended for evaluation in found] == [False, True]
    assert [[f.message[:12] for f in evaluation.findings] for evaluation in found] == [
        ["system 0 to "], ["system 0 to ", "system 10 to"],
    ]  # fmt: skip


def test_where_an_evaluator_was_killed_the_clocks_order_the_rest(run_path: Path, rules: Any) -> None:
    case = FollowedCase(run_path, rules("Busy", "Both"))
    case.write(*steps(4))
    case.write(samples((1, 1)))
    case.evaluator.close()
    case.builder.batch(samples((1, 2)))
    case.builder.step(steps(1)[0])
    case.builder.leave()
    case.builder.close()
    found = [f.message for f in replay(run_path, case.specs).findings]
    last = "JointStep(TRAIN step 3 of 1 views)"
    assert found[:2] == [f"system 0 to 10: [1.0] {last}", f"system 10 to 20: [2.0] {last}"]
    assert found[2] == "step 0 [], step 1 [], step 2 [], step 3 [], window 0 2 0, step 4 [0]"


def test_a_stream_that_goes_on_by_another_clock_is_lost_by_the_one_before(run_path: Path, rules: Any) -> None:
    case = FollowedCase(run_path, rules("Busy"))
    case.write(samples((1, 1)), samples((1, 2), seconds=5))
    with RunBuilder(run_path.with_name("other")) as other:
        other.batch(samples((1, 3)))
        written = other.store.read(layout.numbered(layout.stream("system"), 0))
    header, after = scan(written).frames[:2]
    moved = encode_header({**json.loads(header.payload), "host": "other"}) + written[after.offset :]
    case.store.write(layout.numbered(layout.stream("system"), 1), moved)
    case.write()
    assert case.messages("Busy") == [
        "system 0 to 10: [1.0] None", "system 10 to 16: [2.0] lost None", "system 0 to 10: [3.0] None",
    ]  # fmt: skip
    case.write(*steps(1))
    case.end()


@pytest.mark.parametrize("released", [True, False])
def test_a_stream_is_lost_once_its_writer_has_ended_and_may_go_on(run_path: Path, rules: Any, released: bool) -> None:
    case = FollowedCase(run_path, rules("Busy"))
    writer = StreamWriter(case.store, 0, "system")
    writer.write({SAMPLES: [(2 * SECOND, "cpu", 1.0), (14 * SECOND, "cpu", 2.0)]}, 16 * SECOND)
    case.wait()
    if released:
        writer.close()
    else:
        claim = run_path / "streams/system/claim"
        claim.write_text(json.dumps({**json.loads(claim.read_text()), "process_start": 1}))
    case.wait(1.0)
    assert len(case.messages("Busy")) == 1
    case.wait(1.0, 1.0)
    assert case.messages("Busy")[1:] == ["system 10 to 16: [2.0] lost None"]
    with StreamWriter(case.store, 0, "system") as goes_on:
        goes_on.write({SAMPLES: [(17 * SECOND, "cpu", 3.0), (21 * SECOND, "cpu", 4.0)]}, 26 * SECOND)
    case.write()
    assert case.messages("Busy")[2:] == ["system 10 to 20: [3.0] None"]
    case.again()
    case.write(*steps(1))
    case.end()


def test_a_rule_with_windows_says_that_no_stream_has_what_it_looks_at(run_path: Path, rules: Any) -> None:
    run = build_run(run_path, [*steps(3), Batch({SPANS: [(1.0, 2)]})])
    (busy, both) = replay(run, rules("Busy", "Both")).statuses
    assert (busy.status, busy.reason) == (Status.STARVED, "no stream of this run has rows of the kind readings")
    assert both.status is Status.NO_ISSUES_FOUND


def test_a_rule_that_raises_at_a_window_is_stopped_there(run_path: Path, rules: Any) -> None:
    (status,) = replay(build_run(run_path, [samples((1, 1), (11, 1), seconds=20)]), rules("Raises")).statuses
    assert status.status is Status.ERROR
    assert "raised at window 2 of stream system" in status.reason


@pytest.mark.parametrize("together", [True, False])
def test_parts_with_windows_are_the_whole_and_read_no_statistics(
    run_path: Path, rules: Any, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    weights = {"fc.weight": [[1.0]]}
    given = [*steps(5, statistics=weights), samples((1, 1), seconds=20), *steps(2, statistics=weights)]
    specs = (*rules("Busy"), RuleSpec("ExplodingTensor"), *rules("Views", "Both"))
    ranks = [*given, Silence(3.0)]
    run = build_run(run_path, ranks, workers=2, modules={"fc": "Linear"}) if together else str(alone(run_path, *given))
    engine, config = Engine(specs), EvaluatorConfig(run, None, specs)
    assert engine.whole == (0, 2, 3)
    read: list[int] = []
    statistics = StoredStatistics.at
    monkeypatch.setattr(StoredStatistics, "at", lambda *words: (read.append(1), statistics(*words))[1])
    parts = [replay_part(run, config, rules=[0, 2, 3])]
    assert not read
    parts += [replay_part(run, config, rules=[1], workers=[worker]) for worker in ("worker_0", "worker_1")]
    whole, merged = replay(run, specs), merge([PartialEvaluation.from_json(part.to_json()) for part in parts], specs)
    assert [f.to_json() for f in merged.findings] == [f.to_json() for f in whole.findings]
    assert merged.statuses == whole.statuses
    assert {f.rule for f in whole.findings} == {"Busy", "Views", "Both"}
    assert {f.worker for f in whole.findings if f.rule == "Views" and "1.0" in f.message} == {"worker_0", "worker_1"}


def test_no_stream_is_read_where_no_rule_looks_at_windows(run_path: Path) -> None:
    class NoStreams(LocalStore):
        def folders(self, prefix: str = "") -> Any:
            assert prefix != layout.STREAMS
            return super().folders(prefix)

    run = build_run(run_path, [samples((1, 1)), *steps(2)])
    assert replay(NoStreams(run)).train_steps == 2
    case = FollowedCase(run_path.with_name("live"), (), store=NoStreams(run_path.with_name("live")))
    case.write(samples((1, 1)), *steps(2))
    assert case.evaluator.evaluation().train_steps == 2
    case.end()


def test_what_a_journal_or_a_stream_says_wrongly_holds_nothing_back(run_path: Path, rules: Any) -> None:
    def watermark(steps: int = 0, **data: Any) -> Observation:
        return Observation("watermark", 0, None, data, steps=steps)

    wrong = [
        watermark(stream="system", clock=0, time_ns=2**63), watermark(stream=["a"], clock=0, time_ns=1),
        watermark(stream="system", clock=7, time_ns=1), watermark(stream="system", clock=0, time_ns="x"),
        watermark(stream="system", clock=0, time_ns=-5, lost=1), watermark(10**9, stream="other", clock=0, time_ns=1),
    ]  # fmt: skip
    run = build_run(run_path, [samples((1, 1), (2, 2)), *steps(2)], journal=wrong)
    nonsense = [encode_frame(92, b"["), encode_frame(FrameKind.WATERMARK, b'{"time_ns": 4611686018427387904}')]
    *_, newest = sorted((run_path / "streams" / "system").glob("0*"))
    newest.write_bytes(newest.read_bytes() + b"".join(nonsense))
    evaluation = replay(run, rules("Busy", "Both"))
    assert [f.message for f in evaluation.findings if f.rule == "Busy"] == ["system 0 to 10: [1.0, 2.0] None"]
    assert len(evaluation.problems) == 1
    assert evaluation.train_steps == 2


def test_no_place_that_a_journal_names_wrongly_holds_back_a_worker_that_trains_by_itself(
    run_path: Path, rules: Any
) -> None:
    rows: list[tuple[int, Any]] = [
        (0, {"worker_0": 10**9}), (0, {"worker_7": 1}), (0, {"worker_0": "x"}), (0, [1]), (10**9, {"worker_1": 1}),
    ]  # fmt: skip
    data = {"stream": "system", "clock": 0, "time_ns": 11 * SECOND}
    wrong = [Observation("watermark", 0, None, {**data, "alone": each}, "worker_1", place) for place, each in rows]
    run = alone(run_path, samples((1, 1)), *steps(3))
    with JournalWriter(LocalStore(run)) as writer:
        writer.write(wrong)
    assert len(replay(run, rules("Views")).findings) == 6
    case = Evaluator(EvaluatorConfig(str(run), None, rules("Views")), store=LocalStore(run))
    case.open(lambda seconds: False, patience_s=0.0)
    while case.turn():
        pass
    assert len(case.evaluation().findings) == 6
    case.close()


def test_wrong_declarations_are_refused(tmp_path: Path) -> None:
    for given, said in (
        (
            {"kinds": "readings"},
            r"tuple of kinds of rows by time \(samples, notes, readings, spans\) .* write kinds=\('readings',\)",
        ),
        ({"kinds": ()}, "but got"), ({"kinds": ("scalars",)}, r"got \('scalars',\)"), ({"kinds": [["a"]]}, "but got"),
        ({"kinds": ("readings",), "length_s": 0}, "length_s of Windows must be from 0.1 to 86400 seconds but got 0"),
        ({"kinds": ("readings",), "length_s": True}, "but got True"),
        ({"kinds": ("readings",), "length_s": float("nan")}, "but got nan"),
        ({"kinds": ("readings",), "length_s": "9"}, "but got '9'"),
    ):  # fmt: skip
        with pytest.raises(InvalidValueError, match=said):
            Windows(**given)
    for body in ("streams = 'readings'", "pass"):
        (tmp_path / "wrong.py").write_text(
            f"from watchglass.rules import Rule\nclass Wrong(Rule):\n    {body}\n"
            "    def check_window(self, window):\n        return ()\n"
        )
        with pytest.raises(PluginFileError, match=r"streams of .*Wrong must be Windows.*\(kinds=\(\"samples\",\)"):
            Engine([RuleSpec(f"{tmp_path}/wrong.py:Wrong")])
    with pytest.raises(InvalidValueError, match="Each has check and check_window; a rule has one of them"):

        class Each(Rule):
            def check(self, view: Any) -> Any:
                return ()

            def check_window(self, window: Any) -> Any:
                return ()


def test_observations_of_streams_are_plain_json(run_path: Path, rules: Any) -> None:
    case = FollowedCase(run_path, rules("Busy"))
    case.write(samples((1, 1)))
    case.end()
    seen = [each for each in open_run(run_path).journal.observations if each.kind == "watermark"]
    assert json.loads(json.dumps(seen[0].data)) == {"stream": "system", "clock": 0, "time_ns": 11 * SECOND}


def test_an_instance_of_windows_ends_with_its_attempt_although_workers_train_by_themselves(
    run_path: Path, tmp_path: Path
) -> None:
    """With their last steps; a rule that does not apply says so for all of them."""
    path = tmp_path / "ends.py"
    path.write_text(ENDS)
    run = alone(run_path, *steps(3), samples((1, 1)), samples((1, 2)))
    evaluation = replay(run, (RuleSpec(f"{path}:Ends"), RuleSpec(f"{path}:Never")))
    assert [(each.rule, each.worker, each.message) for each in evaluation.findings] == [
        ("Ends", "", "2 windows, 2 workers")
    ]
    assert [(each.status, each.reason) for each in evaluation.statuses] == [
        (Status.NO_ISSUES_FOUND, ""), (Status.NOT_APPLICABLE, "never after 2 workers"),
    ]  # fmt: skip
