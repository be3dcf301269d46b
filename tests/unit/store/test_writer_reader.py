"""Segments are written, rotated and followed."""

import pytest

from watchglass.errors import RunExistsError, StoreError
from watchglass.records import FORMAT_VERSION, Observation, RuleStatus, Status
from watchglass.store import (
    FrameKind,
    JournalWriter,
    LocalStore,
    RunReader,
    SegmentWriter,
    create_attempt,
    create_run,
    decode_header,
    decode_status,
    encode_frame,
    layout,
)


class Clock:
    def __init__(self, wall_s=1_000_000.0):
        self.wall = self.mono = int(wall_s * 1e9)

    def time_ns(self):
        return self.wall

    def monotonic_ns(self):
        return self.mono

    def pass_s(self, seconds, wall=None):
        self.mono += int(seconds * 1e9)
        self.wall += int((seconds if wall is None else wall) * 1e9)


class ObjectStore(LocalStore):
    """A folder that cannot append, like an object store."""

    appends = False

    def append(self, path, data):
        raise NotImplementedError


@pytest.fixture(params=[LocalStore, ObjectStore])
def store(request, tmp_path):
    store = request.param(tmp_path)
    create_run(store, command=[])
    create_attempt(store, "")
    return store


def fact(number):
    return encode_frame(FrameKind.FACTS, b"%d" % number)


def numbers(found):
    return [int(frame.payload) for _, _, frame in found if frame.kind == FrameKind.FACTS]


def segments(store):
    return [layout.parse_segment(entry.path) for entry in store.list(layout.segments(0))]


def test_what_is_written_is_followed_once_and_in_order(store):
    writer, reader = SegmentWriter(store, 0, "worker_0", clock=Clock()), RunReader(store)
    assert reader.poll() == []
    for start in range(0, 6, 2):
        writer.write([fact(start), fact(start + 1)])
        assert numbers(reader.poll()) == [start, start + 1]
        assert reader.poll() == []
    writer.write([])
    writer.close()
    with pytest.raises(StoreError, match="closed"):
        writer.write([fact(9)])
    assert numbers(RunReader(store).poll()) == list(range(6))


def test_each_segment_begins_with_a_header_that_pairs_clocks(store):
    clock = Clock(wall_s=600)
    clock.mono = 7
    SegmentWriter(store, 0, "worker_0", clock=clock).write([fact(1)])
    ((attempt, worker, header), _) = RunReader(store).poll()
    assert (attempt, worker, header.kind, header.offset) == (0, "worker_0", FrameKind.HEADER, 0)
    found = decode_header(header.payload)
    assert (found["wall_ns"], found["monotonic_ns"]) == (600_000_000_000, 7)
    assert (found["worker"], found["attempt"], found["seq"]) == ("worker_0", 0, 0)
    assert found["format"] == list(FORMAT_VERSION)
    assert {"host", "boot_id", "pid"} <= set(found)


def test_segments_rotate_by_size_and_age(tmp_path):
    store, clock = LocalStore(tmp_path), Clock()
    writer = SegmentWriter(store, 0, "worker_0", clock=clock, rotate_bytes=1000, rotate_s=60)
    writer.write([encode_frame(FrameKind.FACTS, bytes(1000))])
    writer.write([fact(1)])
    clock.pass_s(59)
    writer.write([fact(2)])
    clock.pass_s(2)
    writer.write([fact(3)])
    assert [name.seq for name in segments(store)] == [0, 1, 2]
    assert segments(store)[2].bucket == segments(store)[0].bucket + 1
    assert writer.bytes_written == sum(entry.size for entry in store.list())


def test_a_clock_set_back_does_not_hide_segments(store):
    clock = Clock()
    writer, reader = SegmentWriter(store, 0, "worker_0", clock=clock), RunReader(store)
    writer.write([fact(0)])
    reader.poll()
    clock.pass_s(61, wall=-100_000)
    writer.write([fact(1)])
    assert numbers(reader.poll()) == [1]


def test_a_worker_whose_clock_is_far_behind_is_found_by_a_full_poll(store):
    reader = RunReader(store)
    SegmentWriter(store, 0, "worker_0", clock=Clock(1_000_000)).write([fact(0)])
    reader.poll()
    SegmentWriter(store, 0, "worker_1", clock=Clock(100)).write([fact(1)])
    assert numbers(reader.poll()) == []
    assert numbers(reader.poll(full=True)) == [1]


def test_a_restarted_worker_goes_on_behind_its_segments(store):
    SegmentWriter(store, 0, "worker_0", clock=Clock()).write([fact(0)])
    SegmentWriter(store, 0, "worker_0", clock=Clock(0)).write([fact(1)])
    assert [name.seq for name in segments(store)] == [0, 1]
    assert numbers(RunReader(store).poll()) == [0, 1]


def test_two_writers_of_one_worker_are_refused(store):
    first = SegmentWriter(store, 0, "worker_0", clock=Clock())

    class Overtaken(LocalStore):
        def list(self, prefix="", after=""):
            found = super().list(prefix, after)
            first.write([fact(0)])  # after the second writer has looked which numbers are free
            return found

    second = SegmentWriter(Overtaken(store.root), 0, "worker_0", clock=Clock())
    with pytest.raises(RunExistsError, match="another process"):
        second.write([fact(1)])
    assert numbers(RunReader(store).poll()) == [0]


def test_workers_and_attempts_are_distinguished_and_sorted(store):
    for attempt in (0, 1):
        if attempt:
            create_attempt(store, "")
        for rank in (10, 9):
            SegmentWriter(store, attempt, f"worker_{rank}", clock=Clock()).write([fact(rank)])
    found = [(a, w) for a, w, f in RunReader(store).poll() if f.kind == FrameKind.FACTS]
    assert found == [(0, "worker_9"), (0, "worker_10"), (1, "worker_9"), (1, "worker_10")]


def test_a_poll_is_bounded_and_the_next_goes_on(store):
    writer, reader = SegmentWriter(store, 0, "worker_0", clock=Clock(), rotate_bytes=3000), RunReader(store)
    for start in range(0, 40, 4):
        writer.write([encode_frame(FrameKind.FACTS, b"%0500d" % n) for n in range(start, start + 4)])
    reader_all, polls = [], 0
    while found := reader.poll(max_bytes=2000):
        reader_all += numbers(found)
        polls += 1
    assert reader_all == list(range(40))
    assert polls > 3


def test_a_frame_longer_than_a_chunk_is_read(store):
    given = [0, 10, 5 << 20, 1000, (4 << 20) - 16, 9 << 20, 64]
    SegmentWriter(store, 0, "worker_0", clock=Clock()).write([encode_frame(FrameKind.RAW, bytes(n)) for n in given])
    sizes = [len(f.payload) for _, _, f in RunReader(store).poll() if f.kind == FrameKind.RAW]
    assert sizes == given


def test_a_hole_is_pending_not_an_end(store):
    clock = Clock()
    writer = SegmentWriter(store, 0, "worker_0", clock=clock)
    for number in range(3):
        writer.write([fact(number)])
        clock.pass_s(61)
    path = [entry.path for entry in store.list(layout.segments(0))][1]
    kept = store.read(path)
    store.delete(path)
    reader = RunReader(store)
    assert numbers(reader.poll()) == [0]
    assert "missing" in reader.unfinished()[0].what
    store.write(path, kept)
    assert numbers(reader.poll(full=True)) == [1, 2]
    assert reader.unfinished() == []


def test_the_journal_is_read_in_order_over_its_segments(store):
    reader = RunReader(store)
    assert reader.journal() == []
    for number in range(3):
        with JournalWriter(store) as journal:
            journal.write([RuleStatus("R", Status.IN_PROGRESS, str(number)), Observation("o", 0)])
            journal.write([RuleStatus("S", Status.STOPPED, str(number))])
        assert len(reader.journal()) == 3 * (number + 1)
    statuses = [decode_status(f.payload) for f in RunReader(store).journal() if f.kind == FrameKind.STATUS]
    assert [(s.rule, s.reason) for s in statuses] == [(r, str(n)) for n in range(3) for r in "RS"]
    with pytest.raises(StoreError, match="closed"):
        journal.write([Observation("o", 0)])
