"""A run that was refreshed while it was written says what one says that is opened now, whatever came in between."""

import os
import tempfile

import numpy as np
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from watchglass.records import SCALARS, Fact, Mode, Role, StepEnd, TensorInfo
from watchglass.run import Cursor, open_run
from watchglass.store import (
    LocalStore,
    SegmentWriter,
    compact,
    create_attempt,
    create_run,
    encode_catalog,
    encode_facts,
    encode_lifecycle,
    encode_rows,
    encode_step_ends,
    layout,
    table_of,
)

#: Courses of events to try; the environment asks for more.
_MANY = int(os.environ.get("WATCHGLASS_TEST_EXAMPLES", "40"))
WORKERS = st.sampled_from(["worker_0", "worker_1"])
MODES = st.sampled_from([Mode.TRAIN, Mode.TRAIN, Mode.EVAL, Mode.PREDICT])


class Written:
    """One worker of one attempt: steps begin and end in any order, and some flushes are written twice."""

    def __init__(self, store, attempt, name, first):
        self.writer = SegmentWriter(store, attempt, name, rotate_bytes=600)
        self.number, self.next = 0, dict.fromkeys(Mode, 0)
        self.next[Mode.TRAIN] = first
        self.open, self.frames = [], []
        self.writer.write([lifecycle("joined", name)])
        self.writer.write([encode_catalog([TensorInfo(0, "loss", Role.LOSS), TensorInfo(1, "late", Role.METRIC)])])

    def begin(self, mode, model):
        step = self.next[mode]
        self.next[mode] = step + 1
        after = step if mode is Mode.TRAIN else self.next[Mode.TRAIN] - 1
        self.open.append(StepEnd(self.number, mode, step, after, 10 * self.number, 10 * self.number + 25, 0, model))
        self.number += 1

    def end(self, count, scale):
        ends, self.open = self.open[-count:], self.open[:-count]
        rows = [
            (end.global_step, tensor, 2 + tensor, scale / (end.global_step + 1)) for end in ends for tensor in (0, 1)
        ]
        facts = [
            Fact("seen", end.global_step, "test", {"n": end.global_step}) for end in ends if end.global_step % 3 == 0
        ]
        self.frames = [encode_rows(SCALARS, table_of(SCALARS, rows)), encode_facts(facts), encode_step_ends(ends)]
        self.writer.write(self.frames)


def lifecycle(event, name):
    return encode_lifecycle({"event": event, "worker": name, "time_ns": 0, "wall_ns": 0, "status": "finished"})


def content(run):
    """Everything that a run says of steps."""
    found = {
        "run": (run.attempts, run.attempt, run.workers, run.modes, run.seams, run.finished, repr(run.models)),
        "opened": (run.opened_steps, run.fixed_attempt),
    }
    for name in run.workers:
        worker = run.worker(name)
        names = sorted(worker.infos())
        found[name] = {
            "course": list(worker.course),
            "numbers": [list(worker.numbers(mode)) for mode in Mode],
            "places": [
                worker.end_at(worker.numbers(mode).place(step)) for mode in Mode for step in worker.numbers(mode)
            ],
            "numbering": [np.array(worker.numbering(attempt)).tolist() for attempt in worker.attempts],
            "stretches": [worker.stretches(mode) for mode in (Mode.TRAIN, Mode.EVAL)],
            "by model": [worker.stretches_by_model(mode) for mode in (Mode.TRAIN, Mode.EVAL)],
            "facts": worker.facts(),
            "scalars": [np.array(run.scalars(each, mode, name)).tolist() for each in names for mode in Mode],
            "names": [worker.names_of(mode) for mode in Mode],
            "state": (worker.seconds, worker.left, worker.ended, worker.reached, names),
        }
    return found


class Refreshing(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = LocalStore(self.folder.name)
        create_run(self.store, command=[])
        self.attempt, self.team = -1, {}
        self.resume(first=0, known=True)
        self.runs = [open_run(self.folder.name), open_run(self.folder.name, steps=(2, 9))]
        self.one = open_run(self.folder.name, attempt=0)
        self.cursor, self.followed = Cursor(), {}
        self.snapshots = []

    def teardown(self):
        for snapshot, known in self.snapshots:
            np.testing.assert_equal(content(snapshot), known)
        self.folder.cleanup()

    def of(self, name, first=0):
        key = self.attempt, name
        if key not in self.team:
            self.team[key] = Written(self.store, self.attempt, name, first)
        return self.team[key]

    def resume(self, first, known):
        self.attempt = create_attempt(self.store, "")
        if self.attempt:
            data = {"start_step": first if known else None, "source": "given" if known else "unknown"}
            self.of("worker_0", first).writer.write([encode_facts([Fact("resumed", -1, "test", data)])])

    @rule(name=WORKERS, modes=st.lists(MODES, min_size=1, max_size=6), model=st.integers(0, 1), ended=st.integers(0, 6))
    def step(self, name, modes, model, ended):
        for mode in modes:
            self.of(name).begin(mode, model)
        if ended:
            self.of(name).end(ended, 1.0)

    @rule(name=WORKERS, count=st.integers(1, 9))
    def train(self, name, count):
        for _ in range(count):
            self.of(name).begin(Mode.TRAIN, 0)
        self.of(name).end(count, 1.0)

    @rule(name=WORKERS, count=st.integers(1, 6))
    def end(self, name, count):
        if self.of(name).open:
            self.of(name).end(count, 3.0)

    @rule()
    def refresh(self):
        for run in (*self.runs, self.one):
            run.refresh()

    @rule()
    def follow(self):
        """A reader with a cursor has seen every step that there is."""
        run = self.runs[0]
        news = run.refresh(since=self.cursor)
        self.cursor = news.cursor
        self.followed = {} if news.rebuilt else self.followed
        for name in news.workers:
            for mode in Mode:
                self.followed.setdefault((name, mode), set()).update(news.steps(mode, name).tolist())
        expected = {(name, mode): set(run.steps(mode, name)) for name in run.workers for mode in Mode}
        assert {key: steps for key, steps in self.followed.items() if steps} == {k: v for k, v in expected.items() if v}
        assert not run.refresh(since=self.cursor)

    @rule(place=st.integers(0, 2))
    def keep(self, place):
        """A snapshot says for good what its run says now."""
        run = (*self.runs, self.one)[place]
        self.snapshots.append((run.snapshot(), content(run)))

    @rule()
    def look(self):
        for run in (*self.runs, self.one):
            run.refresh()
            fresh = open_run(self.folder.name, attempt=run.fixed_attempt, steps=run.opened_steps)
            np.testing.assert_equal(content(run), content(fresh))

    @rule(what=st.sampled_from(["leave", "again", "rename", "late", "damage", "resume", "compact"]), data=st.data())
    def disturb(self, what, data):
        name, first = data.draw(WORKERS), data.draw(st.integers(0, 12))
        written = self.of(name)
        if what == "leave":
            written.writer.write([lifecycle("left", name)])
        elif what == "again":
            written.writer.write(written.frames)
        elif what == "rename":
            written.writer.write([encode_catalog([TensorInfo(1, f"new{first % 2}", Role.METRIC)])])
        elif what == "late":
            late = [each for (attempt, _), each in self.team.items() if attempt < self.attempt and each.open]
            for each in late[:1]:
                each.end(1, 2.0)
        elif what == "damage":
            written.writer.write([encode_facts([Fact("noted", -1, "test", {})])])
            entries = self.store.list(layout.segments(self.attempt))
            own = [e for e in entries if layout.parse_segment(e.path).worker == name]
            newest = max(own, key=lambda entry: layout.parse_segment(entry.path).seq)
            self.store.append(newest.path, b"nonsense")
            written.writer = SegmentWriter(self.store, self.attempt, name, rotate_bytes=600)
        elif what == "resume":
            self.resume(first, known=first % 3 > 0)
        else:
            for (_, each), gone in self.team.items():
                gone.writer.write([lifecycle("left", each)])
                gone.writer.close()
            compact(self.store, even_if_unseen=True)
            self.team.clear()
            self.resume(first, known=True)


TestRefreshing = Refreshing.TestCase
TestRefreshing.settings = settings(max_examples=_MANY, stateful_step_count=30, deadline=None)
