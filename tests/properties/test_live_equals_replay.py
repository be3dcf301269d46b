"""Whatever the order and the pieces in which data arrive, the findings are those of a replay."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings as hypothesis_settings, strategies as st

from clocks import Now
from evaluators.ray_in_this_process import Processes, elsewhere
from moments import Made, feed, finish, views_shown
from synthetic_steps import in_turns, modules, of_model, training, with_evaluations
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.evaluate import Follower, Judging, replay
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.records import ROW_KINDS, Fact, Field, Mode, RowKey, RowKind, StepEnd
from watchglass.rules import default_rules
from watchglass.store import (
    FrameKind,
    LocalStore,
    RunReader,
    SegmentWriter,
    StreamWriter,
    create_attempt,
    create_run,
    decode_finding,
    encode_lifecycle,
    encode_rows,
    encode_step_ends,
    layout,
    lease_holder,
    table_of,
)
from watchglass.testing import Batch, RunBuilder, Step

#: Courses of events to try; the environment asks for more.
_MANY = int(os.environ.get("WATCHGLASS_TEST_EXAMPLES", "12"))


def _sick() -> list[Step]:
    """Two models with something for most rules: dead units, a rising validation loss, then divergence to NaN."""
    first = training(
        48,
        loss=lambda n: 2.3 * 0.97**n if n < 30 else 2.3 * 4.0 ** (n - 30) if n < 40 else float("nan"),
        gradient=lambda n, i: 1e-2 * (1.0 if n < 30 else 4.0 ** (n - 30)),
        ratio=lambda n, i: 0.0 if i == 0 else 2.0 if n >= 30 else 1e-3,
        dead=lambda n, i: 0.9 if i == 0 else 0.2,
        facts={0: {"optimizer": {"type": "SGD", "groups": [{"lr": 5.0}]}}},
    )
    second = training(16, loss=lambda n: 0.1 if n < 8 else 50.0, dead=lambda n, i: 1.0)
    return in_turns(with_evaluations(first, lambda n: 1.0 + n / 10, every=6), of_model(second, 1))


STEPS = _sick()
#: All rules; the one of the loss judges no model that is trained in turns before its first window is over.
SPECS = tuple(
    RuleSpec(spec.name, {"settling": 8}) if spec.name == "LossIncreasing" else spec for spec in default_rules()
)


class Whole(LocalStore):
    """Every flush is a segment of its own, which comes whole or not at all."""

    appends = False


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(rank, steps to write before the next look) for two workers, each until its training is over."""
    left = [len(STEPS), len(STEPS)]
    plan: list[tuple[int, int]] = []
    while any(left):
        rank = draw(st.sampled_from([r for r in (0, 1) if left[r]]))
        count = min(draw(st.integers(1, 20)), left[rank])
        left[rank] -= count
        plan.append((rank, count))
    return plan


@pytest.mark.slow
@hypothesis_settings(max_examples=_MANY)
@given(plan=arrivals(), chunk=st.sampled_from([1, 4096, 1 << 20]))
def test_live_equals_replay(tmp_path_factory, plan: list[tuple[int, int]], chunk: int) -> None:
    path: Path = tmp_path_factory.mktemp("property") / "run"
    with RunBuilder(path, modules=modules(2), workers=2) as builder:
        described = {"module_types": modules(2), "module_kinds": modules(2), "roots": ["model"]}
        builder.facts([Fact("model", -1, "test", described)])
        builder.flush()
        follower, engine = Follower(LocalStore(path)), Engine(SPECS)
        written = [0, 0]
        for rank, count in plan:
            worker = builder.workers[rank]
            for step in STEPS[written[rank] : written[rank] + count]:
                worker.step(step)
            written[rank] += count
            worker.flush()
            for views in views_shown(follower.poll(max_bytes=chunk)):
                feed(engine, *views)
        builder.leave()
    while True:
        before = follower.frames
        for views in views_shown(follower.poll(full=True, max_bytes=chunk)):
            feed(engine, *views)
        if follower.frames == before:
            break
    for views in views_shown(follower.drain()):
        feed(engine, *views)
    finish(engine)
    replayed = replay(path, SPECS)
    assert [f.to_json() for f in engine.findings] == [f.to_json() for f in replayed.findings]
    assert engine.statuses() == replayed.statuses
    assert {"ExplodingTensor", "DeadRelu", "Overfit", "LossIncreasing"} <= {f.rule for f in engine.findings}
    # What is found on a worker does not depend on which other workers there are.
    by_worker = [
        [(f.rule, f.step, f.count, f.message) for f in engine.findings if f.worker == w]
        for w in ("worker_0", "worker_1")
    ]
    assert by_worker[0] == by_worker[1]
    shutil.rmtree(path)


@st.composite
def late_segments(draw: st.DrawFn) -> tuple[list[int | None], list[tuple[int, int]]]:
    """For some workers after which step their process ended and began again, if it did; and in which order their
    segments come, but for the last one of each, which is there from the beginning."""
    again = draw(st.lists(st.none() | st.integers(0, _SHORT - 1), min_size=1, max_size=3))
    written = [len(_writes("", after)) for after in again]
    late = [(rank, number) for rank, count in enumerate(written) for number in range(count - 1)]
    return again, draw(st.permutations(late))


_SHORT = 5


def _writes(worker: str, again: int | None) -> list[bytes]:
    """What a worker writes, each a segment of its own."""

    def event(what: str) -> bytes:
        return encode_lifecycle({"event": what, "worker": worker, "time_ns": 0, "wall_ns": 0, "status": "finished"})

    rows = [event("joined")]
    for number in range(_SHORT):
        rows.append(encode_step_ends([StepEnd(number, Mode.TRAIN, number, number, number, number + 1)]))
        if number == again:
            rows += [event("left"), event("joined")]
    return [*rows, event("left")]


@hypothesis_settings(max_examples=4 * _MANY)
@given(late=late_segments())
@example(late=([None, None], [(0, n) for n in range(6)] + [(1, n) for n in range(6)]))
@example(late=([None, 0], [(1, 0), (1, 1), (1, 2)] + [(0, n) for n in range(6)] + [(1, n) for n in range(3, 8)]))
def test_steps_come_in_one_order_however_late_segments_are(tmp_path_factory, late: Any) -> None:
    """A step waits for a worker of which it is only known that there is more than could be read."""
    again, order = late
    path: Path = tmp_path_factory.mktemp("late") / "run"
    store = Whole(path)
    create_run(store, command=[])
    create_attempt(store, "")
    held_back = path.parent / "held_back"
    held_back.mkdir()
    places: dict[tuple[int, int], Path] = {}
    for rank, after in enumerate(again):
        worker = layout.worker_name(rank)
        writer = SegmentWriter(store, 0, worker)
        for frame in _writes(worker, after):
            writer.write([frame])
        for number, segment in enumerate(sorted(path.rglob(f"{worker}-*"))):
            places[rank, number] = segment

    def given(follower: Follower) -> list[list[tuple[str, int]]]:
        return [[(view.worker, view.mode_step) for view in views] for views in views_shown(follower.poll(full=True))]

    at_once = given(Follower(store))
    for (rank, number), segment in places.items():
        if (rank, number) in order:
            segment.rename(held_back / f"{rank}-{number}")
    follower = Follower(store)
    piecemeal = given(follower)
    for rank, number in order:
        (held_back / f"{rank}-{number}").rename(places[rank, number])
        piecemeal += given(follower)
    assert piecemeal == at_once
    assert sum(map(len, at_once)) == _SHORT * len(again)
    shutil.rmtree(path.parent)


def test_a_late_fact_comes_with_the_next_step(run_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        builder.step(scalars={"loss": 1.0})
        worker = builder.workers[0]
        from watchglass.store import encode_facts

        worker._writer.write([encode_facts([Fact("step_skipped", 0, "late", {})])])
        builder.step(scalars={"loss": 2.0}, facts={"loss_scale": {"scale": 2.0}})
        builder.step(scalars={"loss": np.pi})
        builder.leave()
    seen = []
    follower = Follower(LocalStore(run_path))
    for views in views_shown(follower.poll(full=True)):
        seen += [[fact.kind for fact in view.facts()] for view in views]
    assert seen == [[], ["step_skipped", "loss_scale"], []]


RULES = '''
import time
from watchglass.records import Severity
from watchglass.rules import Needs, Rule, Windows, state

class Heard(Rule):
    """Says what became of workers, and when it heard of it."""
    needs = (Needs(observations=("worker_lost",)),)
    def check(self, view):
        for seen in view.observations():
            what = f"{seen.kind} {seen.data['worker']} {seen.data.get('at')}"
            yield self.finding(view, severity=Severity.WARNING, subject=what, message=f"{what} at {view.global_step}")

class Hangs(Rule):
    """Counts, and hangs at one step of one worker."""
    step: int = 11
    seen: int = state(int)
    def check(self, view):
        self.seen += 1
        if view.mode_step == self.step and view.worker == "worker_1":
            while True:
                pass
        yield self.finding(view, severity=Severity.INFO, subject=f"{self.seen // 8}", message=f"{self.seen}")
    def finish(self, view):
        yield self.finding(view, severity=Severity.WARNING, subject="end", message=f"saw {self.seen}")

class Together(Rule):
    """Says who takes part in each step, and what it hears between steps."""
    needs = (Needs(observations=("worker_lost",), optional=True),)
    seen: int = state(int)
    def check_step(self, step):
        self.seen += 1
        who = [view.worker for view in step.views], [seen.kind for seen in step.observations()]
        subject = f"{step.mode.name} {step.mode_step}"
        yield self.finding(step, severity=Severity.INFO, subject=subject, message=f"{self.seen} {who}")
    def tick(self, tick):
        what = f"{self.seen} {tick.number} {dict(tick.seconds)} {sorted(tick.living)}"
        yield self.finding(tick, severity=Severity.WARNING, subject=what, message=what)
    def finish(self, step):
        what = [view.worker for view in step.views], [seen.kind for seen in step.observations()]
        said = f"saw {self.seen} {what}"
        yield self.finding(step, severity=Severity.WARNING, subject="end", message=said)

class Apart(Rule):
    """Counts steps of a worker, and says at each tick how many there were."""
    seen: int = state(int)
    def check(self, view):
        self.seen += 1
        return ()
    def tick(self, tick):
        yield self.finding(tick, severity=Severity.WARNING, subject=f"{tick.number}", message=f"{self.seen}")

class Windowed(Rule):
    """Says what it sees of streams, between steps and at steps."""
    streams = Windows(kinds=("readings",), length_s=2)
    seen: int = state(int)
    def check_step(self, step):
        self.seen += 1
        what = [(s.stream, s.clock, s.start_ns, s.end_ns, s.rows("readings").tolist()) for s in step.streams]
        yield self.finding(step, severity=Severity.INFO, subject=f"{self.seen}", message=f"{what}")
    def check_window(self, window):
        rows = window.rows("readings")["value"].tolist()
        what = f"{window.stream} {window.clock} {window.start_ns} {window.end_ns} {window.lost} {rows} {self.seen}"
        yield self.finding(window, severity=Severity.WARNING, subject=what, message=f"{what} {window.last}")

class Looks(Rule):
    """Says what it sees of streams at the steps of one worker."""
    streams = Windows(kinds=("readings",), length_s=1)
    def check(self, view):
        what = [(s.stream, s.clock, s.start_ns, s.end_ns, s.rows("readings")["value"].tolist()) for s in view.streams]
        subject = f"{view.mode.name} {view.mode_step}"
        yield self.finding(view, severity=Severity.INFO, subject=subject, message=f"{what}")

class WindowsAlone(Rule):
    """Sees nothing but windows."""
    streams = Windows(kinds=("readings",), length_s=0.5)
    def check_window(self, window):
        what = f"{window.stream} {window.start_ns} {window.number} {window.last}"
        yield self.finding(window, severity=Severity.WARNING, subject=what, message=what)

class Waits(Rule):
    """Sees nothing but ticks."""
    def tick(self, tick):
        what = f"{tick.number} {dict(tick.seconds)} {tick.last!r}"
        yield self.finding(tick, severity=Severity.WARNING, subject=what, message=what)
'''


RULE_NAMES = ("Heard", "Hangs", "Together", "Apart", "Waits", "Windowed", "Looks", "WindowsAlone")
SAMPLES = RowKind("readings", 92, (Field("value", "i64"),), RowKey.TIME)


@st.composite
def events(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What happens, in order: steps are written by a rank, a segment is held back or comes, and so on."""
    kinds = ["steps"] * 8 + ["turn"] * 4 + ["wait", "hold", "deliver", "restart", "kill", "lose", "return", "attempt"]
    kinds += ["leave", "join"] + ["batch"] * 4 + ["silent", "pause"]
    return draw(st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 15)), min_size=4, max_size=40))


class _Course:
    """A run that is written and evaluated at the same time, by evaluators that come and go.

    Of its two workers so many train by themselves.
    """

    def __init__(self, path: Path, specs: tuple[RuleSpec, ...], judging: Callable[..., Judging], alone: int) -> None:
        self.path, self.specs, self.store, self.judging, self.alone = path, specs, Whole(path), judging, alone
        self.held: list[tuple[Path, Path]] = []
        self.builders = [self._begun()]
        self.written = [0, 0]
        self.clock, self.made = Now(), Made()
        self.evaluator = self._started()
        self.times = 0
        self.looked_at: set[Path] = set()

    def _begun(self) -> RunBuilder:
        workers = 1 if self.alone == 1 else 2
        builder = RunBuilder(Whole(self.path), modules=modules(2), workers=workers, alone=self.alone == 2)
        if self.alone == 1:
            first = builder.workers[0]
            place = builder.store, builder.attempt, 1, first._layers, first._process, 0
            builder.workers.append(type(first)(*place, alone=True))
        return builder

    def _started(self) -> Evaluator:
        config = EvaluatorConfig(str(self.path), None, self.specs, rule_timeout_s=0.5)
        evaluator = Evaluator(config, store=self.store, judging=self.made.by(self.judging), clock=self.clock)
        evaluator.open(lambda seconds: False, patience_s=0.0, gone=lease_holder(self.store))
        return evaluator

    def steps(self, number: int) -> None:
        rank, builder = number % 2, self.builders[-1]
        for step in STEPS[self.written[rank] : self.written[rank] + 1 + number // 2]:
            builder.workers[rank].step(step)
        self.written[rank] += 1 + number // 2
        builder.workers[rank].flush()

    def turn(self, number: int) -> None:
        self.looked_at.update([*self.path.rglob("worker_*-*"), *(self.path / layout.STREAMS).rglob("0*")])
        self.evaluator.turn(max_bytes=1 << (8 + number))
        self.made.judging.drained()

    def hold(self, number: int) -> None:
        """The newest segment of a worker or stream is not there yet; read records do not disappear."""
        of_worker = (self.path / layout.segments(self.builders[-1].attempt)).rglob(f"worker_{number % 2}-*")
        of_stream = (self.path / layout.stream(("system", "disk")[number % 2])).glob("0*")
        segments = sorted(of_worker if number < 11 else of_stream)
        if segments and segments[-1] not in self.looked_at:
            held_back = self.path.parent / f"held_{len(self.held)}_{segments[-1].name}_{self.times}"
            self.times += 1
            segments[-1].rename(held_back)
            self.held.append((segments[-1], held_back))

    def deliver(self, number: int) -> None:
        if self.held:
            path, held_back = self.held.pop(number % len(self.held))
            held_back.rename(path)

    def deliver_streams(self) -> None:
        """The next writer of a stream counts on from what is there."""
        while any(layout.STREAMS in path.parts for path, _ in self.held):
            self.deliver(0)

    def restart(self, number: int) -> None:
        self.evaluator.close()
        self.evaluator = self._started()

    def kill(self, number: int) -> None:
        self.made.judging.close()
        self.evaluator = self._started()

    def observe(self, kind: str, number: int) -> None:
        self.times += 1
        judging, name = self.made.judging, f"worker_{number % 2}"
        worker = judging.workers.get((self.builders[-1].attempt, name))
        if worker is not None:
            judging.observed([worker.observation(kind, at=self.times)])

    def event(self, number: int, event: str, **more: Any) -> None:
        self.builders[-1].workers[number % 2]._event(event, **more)

    @property
    def streams(self) -> dict[str, tuple[StreamWriter, int]]:
        """The writers of the attempt that goes on, by stream, and until when each has written."""
        return self.builders[-1]._streams

    def lose(self, number: int) -> None:
        self.observe("worker_lost", number)

    def return_(self, number: int) -> None:
        self.observe("worker_returned", number)

    def leave(self, number: int) -> None:
        """A worker leaves, or joins again under the same name, as another process would."""
        self.builders[-1].workers[number % 2].flush()
        self.event(number, "left", status="finished")

    def join(self, number: int) -> None:
        self.event(number, "joined")

    def look_again(self) -> None:
        """It is time for another look at claims."""
        self.clock.advance(self.store.policy.intervals().liveness_s)

    def pause(self, number: int) -> None:
        """So many seconds pass: some time less than between two looks at claims, or two listings."""
        self.clock.advance(number)

    def wait(self, number: int) -> None:
        """Nothing is written for so many seconds."""
        self.look_again()
        self.clock.advance(number)
        self.turn(15)

    def attempt(self, number: int) -> None:
        """The training is killed, and begins again."""
        if len(self.builders) < 3:
            # What comes when its attempt was ended is evaluated again, beside what the journal says of that end.
            while self.builders[1:] and self.held:
                self.deliver(0)
            self.deliver_streams()
            self.builders[-1].close()
            self.builders.append(self._begun())
            self.written = [0, 0]

    def batch(self, number: int) -> None:
        """One of two streams writes about a short or a long stretch of time."""
        self.times += 1
        if not self.streams:
            self.deliver_streams()
        stream, seconds = ("system", "disk")[number % 2], number / 4
        rows = [(seconds * part / 3, self.times) for part in range(min(number, 3))]
        self.builders[-1].batch(Batch({SAMPLES: rows}, seconds + 0.125, stream))

    def silent(self, number: int) -> None:
        """The writer of a stream is killed, and what it had begun to write stays; another one goes on, or none."""
        stream = ("system", "disk")[number % 2]
        if stream in self.streams:
            self.deliver_streams()
            segment = max((self.path / layout.stream(stream)).glob("0*"))
            with segment.open("ab") as file:
                file.write(encode_rows(SAMPLES, table_of(SAMPLES, [(1, 2)]))[: 3 * number])
            if number > 7:
                writer, until_ns = self.streams[stream]
                writer.close()
                store, attempt = self.builders[-1].store, self.builders[-1].attempt
                self.streams[stream] = StreamWriter(store, attempt, stream), until_ns

    def end(self, dropped: bool) -> None:
        self.builders[-1].leave()
        # What was never there when somebody looked may be lost for good; what was read cannot come undone.
        for path, held_back in self.held:
            if not dropped or path in self.looked_at:
                held_back.rename(path)
        while self.evaluator.turn() or self.made.judging.waits or not self.evaluator.over(lifeline_open=False):
            self.look_again()
        self.evaluator.finish()


#: Courses that chance seldom finds: what is observed before a restart, segments that are late or never come while the
#: evaluator goes on, one that is killed with a rule that hung, and attempts that follow each other.
_OBSERVED = [
    ("steps", 8),
    ("steps", 9),
    ("turn", 8),
    ("lose", 1),
    ("steps", 6),
    ("turn", 8),
    ("restart", 0),
    ("steps", 7),
]
_LATE = [("steps", 6), ("hold", 0), ("steps", 8), ("steps", 9), ("turn", 8), ("deliver", 0), ("turn", 3), ("steps", 15)]
_NEVER = [("steps", 8), ("steps", 9), ("turn", 8), ("steps", 6), ("hold", 0), ("steps", 6), ("steps", 11), ("turn", 8)]
_KILLED = [("steps", 15), ("steps", 14), ("steps", 15), ("turn", 9), ("kill", 0), ("lose", 0), ("turn", 9), ("kill", 0)]
_AGAIN = [
    ("steps", 14),
    ("steps", 9),
    ("turn", 8),
    ("attempt", 0),
    ("steps", 15),
    ("turn", 8),
    ("restart", 0),
    ("steps", 8),
]


#: The last steps of workers that were killed come when their successors have gone on for a while.
_LATER = [
    *[("steps", 14), ("turn", 8), ("steps", 14), ("hold", 0), ("attempt", 0), ("steps", 15), ("steps", 14)],
    *[("turn", 8), ("turn", 8), ("turn", 8), ("deliver", 0), ("turn", 8), ("steps", 8)],
]


#: Ticks between steps, before and behind a restart; a worker of which nothing is known while the other goes on, with a
#: new evaluator that finds it there from the beginning; and one that leaves, is gone on without, and joins again.
_WAITED = [
    *[("steps", 8), ("steps", 9), ("turn", 8), ("wait", 2), ("wait", 5), ("lose", 1), ("steps", 6), ("turn", 8)],
    *[("wait", 4), ("kill", 0), ("wait", 9), ("wait", 9), ("restart", 0), ("wait", 1), ("steps", 9), ("wait", 2)],
]
_JOINED_LATE = [
    *[("hold", 1), ("steps", 8), ("turn", 8), ("wait", 1), ("steps", 2), ("turn", 8), ("deliver", 0), ("kill", 0)],
    *[("turn", 8), ("steps", 9), ("steps", 8), ("turn", 8)],
]
_LEFT = [
    *[("steps", 8), ("steps", 9), ("leave", 1), ("turn", 8), ("steps", 8), ("turn", 8), ("wait", 3), ("join", 1)],
    *[("steps", 9), ("turn", 8), ("kill", 0), ("turn", 8), ("steps", 15)],
]


#: The first segment of one worker never comes, and the last words of another: it is lost all the same.
_NEVER_BEGUN = [("hold", 0), ("steps", 0), ("steps", 1), ("hold", 1)]
#: An attempt begins and ends between two listings of the run, and the last steps of a worker never come.
_ENDED_BETWEEN_LISTINGS = [
    *[("silent", 15), ("steps", 6), ("turn", 9), ("pause", 9), ("steps", 3), ("turn", 10), ("attempt", 0)],
    *[("steps", 2), ("steps", 7), ("hold", 5), ("steps", 11), ("pause", 7)],
]
#: Two attempts begin between two looks at claims; the first one has ended when its workers count as silent.
_ATTEMPTS_BETWEEN_LOOKS = [
    *[("steps", 2), ("turn", 14), ("steps", 0), ("turn", 10), ("attempt", 0), ("attempt", 0), ("steps", 2)],
    *[("steps", 9), ("turn", 15), ("turn", 15), ("wait", 0)],
]
#: Rows come when an evaluator has shown later steps, and another one takes over.
_TAKEN_OVER = [
    *[("steps", 14), ("steps", 15), ("steps", 14), ("steps", 15), ("turn", 15), ("turn", 15)],
    *[("batch", 5), ("kill", 0), ("turn", 15), ("steps", 14), ("steps", 15)],
]
#: A worker leaves twice, and another evaluator first reads no more than that it joined.
_LEFT_TWICE = [
    *[("steps", 8), ("steps", 9), ("leave", 0), ("join", 0), ("steps", 8), ("steps", 9), ("leave", 0), ("turn", 15)],
    *[("restart", 0), ("turn", 0), ("steps", 9)],
]
#: Streams before, between and after steps, for an evaluator that is killed, and into the next attempt.
_STREAMS = [
    *[("batch", 8), ("hold", 14), ("batch", 12), ("turn", 8), ("steps", 2), ("turn", 8), ("deliver", 0), ("turn", 8)],
    *[("batch", 14), ("turn", 8), ("steps", 8), ("steps", 9), ("batch", 12), ("turn", 8), ("batch", 15), ("kill", 0)],
    *[
        ("steps", 6),
        ("batch", 8),
        ("turn", 8),
        ("silent", 14),
        ("batch", 12),
        ("restart", 0),
        ("turn", 8),
        ("batch", 2),
    ],
    *[("steps", 7), ("wait", 3), ("silent", 5), ("batch", 13), ("attempt", 0), ("batch", 14), ("steps", 15)],
    *[("turn", 8), ("steps", 14), ("batch", 6), ("batch", 7)],
]


@pytest.mark.slow
@hypothesis_settings(max_examples=max(1, _MANY // 2))
@given(course=events(), dropped=st.booleans(), alone=st.sampled_from([0, 1, 2]))
@example(course=_OBSERVED, dropped=False, alone=0)
@example(course=_LATE, dropped=False, alone=0)
@example(course=_NEVER, dropped=True, alone=0)
@example(course=_KILLED, dropped=False, alone=0)
@example(course=_AGAIN, dropped=False, alone=0)
@example(course=_LATER, dropped=False, alone=0)
@example(course=_WAITED, dropped=False, alone=0)
@example(course=_JOINED_LATE, dropped=False, alone=0)
@example(course=_LEFT, dropped=False, alone=0)
@example(course=_STREAMS, dropped=False, alone=0)
@example(course=_STREAMS, dropped=False, alone=1)
@example(course=_STREAMS, dropped=False, alone=2)
@example(course=_NEVER_BEGUN, dropped=True, alone=0)
@example(course=_ENDED_BETWEEN_LISTINGS, dropped=True, alone=0)
@example(course=_TAKEN_OVER, dropped=False, alone=0)
@example(course=_TAKEN_OVER, dropped=False, alone=2)
@example(course=_LEFT_TWICE, dropped=False, alone=0)
@example(course=_ATTEMPTS_BETWEEN_LOOKS, dropped=False, alone=1)
def test_an_evaluator_says_what_a_replay_says(
    tmp_path_factory, course: list[tuple[str, int]], dropped: bool, alone: int
) -> None:
    assert_as_replayed(tmp_path_factory.mktemp("course"), course, dropped, alone, Judging)


# A process for each part of a run takes a second to begin: few examples, of which each has several parts.
@pytest.mark.slow
@hypothesis_settings(max_examples=max(1, _MANY // 6))
@given(course=events(), dropped=st.booleans(), alone=st.sampled_from([0, 1, 2]))
@example(course=_KILLED, dropped=False, alone=0)
@example(course=_STREAMS, dropped=False, alone=1)
@example(course=_TAKEN_OVER, dropped=False, alone=0)
def test_so_do_the_processes_of_an_evaluator(
    tmp_path_factory, course: list[tuple[str, int]], dropped: bool, alone: int
) -> None:
    assert_as_replayed(tmp_path_factory.mktemp("course"), course, dropped, alone, elsewhere(Processes()))


def assert_as_replayed(folder: Path, course: list[tuple[str, int]], dropped: bool, alone: int, judging: Any) -> None:
    """The evaluator of a run with these events finds what a replay of the run finds."""
    ROW_KINDS[SAMPLES.number] = SAMPLES
    (folder / "rules.py").write_text(RULES)
    specs = (*SPECS, *(RuleSpec(f"{folder}/rules.py:{name}") for name in RULE_NAMES))
    # What ends a call may be raised where Hypothesis listens to the garbage collector, and cannot leave it.
    gc.disable()
    try:
        live = _Course(folder / "run", specs, judging, alone)
        for what, number in course:
            getattr(live, "return_" if what == "return" else what)(number)
        live.end(dropped)
        evaluation = live.evaluator.evaluation()
    finally:
        gc.enable()
    replayed = replay(live.store, specs, rule_timeout_s=1e6)
    assert [f.to_json() for f in evaluation.findings] == [f.to_json() for f in replayed.findings]
    assert evaluation.statuses == replayed.statuses
    if course == _STREAMS:
        assert {"Windowed", "WindowsAlone"} <= {finding.rule for finding in replayed.findings}
        looked = [found for found in replayed.findings if found.rule == "Looks"]
        assert {found.worker for found in looked if "(" in found.message} == {"worker_0", "worker_1"}
    assert _journalled(live.store) == {f.id: f.to_json() for f in replayed.findings}
    shutil.rmtree(folder)
    del ROW_KINDS[SAMPLES.number]


def _journalled(store: LocalStore) -> dict[str, Any]:
    frames = RunReader(store).journal()
    found = [decode_finding(frame.payload) for frame in frames if frame.kind == FrameKind.FINDING]
    return {finding.id: finding.to_json() for finding in found}
