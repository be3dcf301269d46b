"""A machine that writes, crashes, resumes and reads: the reader sees what was flushed, once and in order."""

import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from watchglass.store import (
    FrameKind,
    LocalStore,
    RunReader,
    SegmentWriter,
    create_attempt,
    create_run,
    encode_frame,
    layout,
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

    def frames(self, count):
        numbers = list(range(self.number, self.number + count))
        self.number += count
        return numbers, [encode_frame(FrameKind.FACTS, b"%d" % n) for n in numbers]

    @rule(count=st.integers(1, 5))
    def write(self, count):
        numbers, frames = self.frames(count)
        self.writer.write(frames)
        self.expected += numbers

    @rule(seconds=st.sampled_from([1, 30, 61, 400, -400]))
    def time_passes(self, seconds):
        self.clock.now += seconds * 10**9

    @precondition(lambda self: self.writer._path is not None)
    @rule(count=st.integers(1, 3), share=st.floats(0, 1))
    def killed_within_a_write(self, count, share):
        numbers, frames = self.frames(count)
        data = b"".join(frames)
        cut = int(share * len(data))
        self.store.append(self.writer._path, data[:cut])
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
