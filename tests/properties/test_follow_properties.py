"""The reader sees what was flushed, once and in order, whatever crashes; a follower gives the same steps however late.

The first is a machine that writes, crashes, resumes and reads.
"""

import tempfile

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moments import views_shown
from stores.store_segments import new_store
from watchglass.evaluate import Follower
from watchglass.records import SCALARS, Fact, Mode, Role, StepEnd, TensorInfo
from watchglass.stats import of_array
from watchglass.store import (
    FrameKind,
    LocalStore,
    RunReader,
    SegmentWriter,
    StatisticsBatch,
    claim_worker,
    create_attempt,
    create_run,
    dtype_of,
    encode_catalog,
    encode_facts,
    encode_frame,
    encode_lifecycle,
    encode_rows,
    encode_statistics,
    encode_step_ends,
    layout,
    release_worker,
)


class Clock:
    now = 10**18

    def time_ns(self):
        return self.now

    def monotonic_ns(self):
        return self.now


class Following(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = LocalStore(self.folder.name)
        create_run(self.store, command=[])
        create_attempt(self.store, "")
        self.clock = Clock()
        self.expected, self.seen, self.number = [], [], 0
        self.reader = RunReader(self.store)
        self.resume()

    def teardown(self):
        self.folder.cleanup()

    def resume(self):
        self.writer = SegmentWriter(self.store, 0, "worker_0", clock=self.clock, rotate_bytes=900, rotate_s=60)
        self.is_open = False  # whether it has begun a segment

    def frames(self, count):
        numbers = list(range(self.number, self.number + count))
        self.number += count
        return numbers, [encode_frame(FrameKind.FACTS, b"%d" % n) for n in numbers]

    @rule(count=st.integers(1, 5))
    def write(self, count):
        numbers, frames = self.frames(count)
        self.writer.write(frames)
        self.is_open = True
        self.expected += numbers

    @rule(seconds=st.sampled_from([1, 30, 61, 400, -400]))
    def time_passes(self, seconds):
        self.clock.now += seconds * 10**9

    @precondition(lambda self: self.is_open)
    @rule(count=st.integers(1, 3), share=st.floats(0, 1))
    def killed_within_a_write(self, count, share):
        numbers, frames = self.frames(count)
        data = b"".join(frames)
        cut = int(share * len(data))
        newest = max(self.store.list(layout.segments(0)), key=lambda entry: layout.parse_segment(entry.path).seq)
        self.store.append(newest.path, data[:cut])
        self.expected += [n for i, n in enumerate(numbers) if sum(map(len, frames[: i + 1])) <= cut]
        self.resume()

    @rule(max_bytes=st.sampled_from([1, 200, 1 << 20]), full=st.booleans())
    def read(self, max_bytes, full):
        found = self.reader.poll(max_bytes, full=full)
        self.seen += [int(frame.payload) for _, _, frame in found if frame.kind == FrameKind.FACTS]

    @invariant()
    def what_is_seen_is_a_prefix(self):
        assert self.seen == self.expected[: len(self.seen)]

    @rule()
    def reading_to_the_end_sees_all(self):
        while found := self.reader.poll(full=True):
            self.seen += [int(frame.payload) for _, _, frame in found if frame.kind == FrameKind.FACTS]
        assert self.seen == self.expected
        fresh = [int(f.payload) for _, _, f in RunReader(self.store).poll() if f.kind == FrameKind.FACTS]
        assert fresh == self.expected

    @invariant()
    def segments_have_no_gaps(self):
        names = [layout.parse_segment(entry.path) for entry in self.store.list(layout.segments(0))]
        assert sorted(name.seq for name in names) == list(range(len(names)))


TestFollowing = Following.TestCase
TestFollowing.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def recorded(folder, workers, flushes):
    """A run of which every flush is a segment of its own; returns its store and the segments of each worker."""
    store = new_store(folder)
    for rank in range(workers):
        claim_worker(store, 0, f"worker_{rank}")
        writer = SegmentWriter(store, 0, f"worker_{rank}", clock=Clock(), rotate_bytes=1)
        writer.write([
            encode_lifecycle({"event": "joined", "worker": f"worker_{rank}", "time_ns": 0, "wall_ns": 0}),
            encode_catalog([TensorInfo(0, "loss", Role.LOSS), TensorInfo(1, "a.weight", Role.WEIGHT)]),
        ])  # fmt: skip
        for step in range(flushes):
            rows = np.array([of_array(np.arange(3.0) + step + 10 * rank)])
            one = np.ones(1, np.uint32)
            batch = StatisticsBatch(np.array([step], "u8"), one, one, rows, np.zeros(1, "u1"), np.zeros(1, bool))
            facts = [Fact("of the run", -1, "test", {"n": step})] if step % 3 == 1 else []
            writer.write([
                encode_statistics(batch), encode_facts([Fact("k", step, "test", {"n": step}), *facts]),
                encode_rows(SCALARS, np.array([(step, 0, 1.0, step + rank)], dtype_of(SCALARS))),
                encode_step_ends([StepEnd(step, Mode.TRAIN, step, step, step, step + 1, 1)]),
            ])  # fmt: skip
        left = {"event": "left", "worker": f"worker_{rank}", "status": "finished", "reason": "", "counters": {}}
        writer.write([encode_lifecycle({**left, "time_ns": 0, "wall_ns": 0})])
        release_worker(store, 0, f"worker_{rank}")
    names = [(layout.parse_segment(entry.path), entry.path) for entry in store.list(layout.segments(0))]
    return store, {(name.worker, name.seq): path for name, path in names}


def said(views):
    """All that a rule could see of the views of one step."""
    return [
        (view.worker, view.mode_step, view.scalars(), view.statistics().values.tolist(), view.facts(),
         [fact.data for fact in view.facts("of the run")])
        for view in views
    ]  # fmt: skip


def read_all(follower):
    found = []
    while True:
        before = follower.frames
        found += [said(views) for views in views_shown(follower.poll(full=True))]
        if follower.frames == before:
            return found


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_segments_in_any_order_give_the_same_steps_in_the_same_order(data):
    workers, flushes = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        whole, segments = recorded(folder, workers, flushes)
        late = Follower(whole)
        expected = read_all(late)
        expected += [said(views) for views in views_shown(late.drain())]
        assert [len(views) for views in expected] == [workers] * flushes

        partly = type(whole)(other)
        for entry in whole.list():
            if layout.parse_segment(entry.path) is None:
                partly.write(entry.path, whole.read(entry.path))
        missing = data.draw(st.none() | st.sampled_from([key for key in segments if 0 < key[1] <= flushes]))
        # A worker is waited for from the first segment on that is seen of it, whichever that is.
        choices = [
            [key for key in segments if key[0] == f"worker_{rank}" and key != missing] for rank in range(workers)
        ]
        order = [data.draw(st.sampled_from(own)) for own in choices]
        order += data.draw(st.permutations([key for key in segments if key not in order]))
        follower, found = Follower(partly), []
        for number, key in enumerate(order):
            if key == missing:
                continue
            partly.write(segments[key], whole.read(segments[key]))
            if number >= workers - 1 and data.draw(st.booleans()):
                found += read_all(follower)
            assert found == expected[: len(found)]
        found += read_all(follower)
        if missing is None:
            assert found == expected
            assert not any(worker.active for worker in follower.workers.values())
            return
        # Pending, not the end: the step before it, no more, and its worker is still expected.
        assert found == expected[: missing[1] - 1]
        assert missing[0] in {worker.worker for worker in follower.workers.values() if worker.active}
        partly.write(segments[missing], whole.read(segments[missing]))
        assert found + read_all(follower) == expected
