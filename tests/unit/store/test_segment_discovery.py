"""What a poll costs in requests, and whose segments it finds however clocks differ."""

from collections import Counter

import pytest

from stores.store_segments import fact, numbers
from watchglass.errors import StoreError
from watchglass.store import (
    FrameKind,
    LocalStore,
    RunReader,
    SegmentWriter,
    StoredObject,
    create_attempt,
    create_run,
    encode_frame,
    layout,
)
from watchglass.store.segment_discovery import SegmentDiscovery

MINUTE, DAY = 60, 86_400


class Clock:
    def __init__(self, wall_s=1_000_000.0 * MINUTE):
        self.wall = self.mono = int(wall_s * 1e9)

    def time_ns(self):
        return self.wall

    def monotonic_ns(self):
        return self.mono

    def pass_s(self, seconds):
        self.wall += int(seconds * 1e9)
        self.mono += int(seconds * 1e9)

    def ahead(self, seconds):
        return _Ahead(self, seconds)


class _Ahead:
    def __init__(self, clock, seconds):
        self._clock, self._ns = clock, int(seconds * 1e9)

    def time_ns(self):
        return self._clock.wall + self._ns

    def monotonic_ns(self):
        return self._clock.mono


class Counting(LocalStore):
    """Notes what was asked of it."""

    def __init__(self, root):
        super().__init__(root)
        self.asked = []

    def read(self, path, start=0, end=None):
        self.asked.append(("read", path))
        return super().read(path, start, end)

    def list(self, prefix="", after=""):
        self.asked.append(("list", after))
        return super().list(prefix, after)

    def size(self, path):
        self.asked.append(("size", path))
        return super().size(path)

    def taken(self, verb=None):
        asked, self.asked = self.asked, []
        return [what for which, what in asked if verb in (None, which)]


class Objects(Counting):
    appends = False

    def append(self, path, data):
        raise NotImplementedError


@pytest.fixture
def clock():
    return Clock()


def begun(store):
    create_run(store, command=[])
    create_attempt(store, "")
    store.taken()
    return store


@pytest.fixture
def objects(tmp_path):
    return begun(Objects(tmp_path))


def writer_of(store, rank, clock):
    return SegmentWriter(store, 0, f"worker_{rank}", clock=clock)


def test_a_poll_of_an_object_store_is_one_listing_and_one_read_for_each_new_segment(objects, clock):
    writer, reader = writer_of(objects, 0, clock), RunReader(objects, clock=clock)
    writer.write([fact(0)])
    reader.poll()
    for number in range(1, 20):
        clock.pass_s(1)
        if number % 5 == 0:
            writer.write([fact(number)])
        objects.taken()
        found = numbers(reader.poll())
        asked = [which for which, _ in objects.asked]
        assert (asked.count("list"), asked.count("read")) == (1, len(found))
        assert found == ([number] if number % 5 == 0 else [])


def test_segments_of_many_workers_are_fetched_together(objects, clock):
    for rank in range(5):
        for number in range(3):
            writer_of(objects, rank, clock).write([fact(10 * rank + number)])
    fetched = []
    objects.read_many = lambda ranges: fetched.append(len(ranges)) or LocalStore.read_many(objects, ranges)
    assert numbers(RunReader(objects, clock=clock).poll()) == [10 * rank + n for rank in range(5) for n in range(3)]
    assert fetched == [15]


@pytest.mark.parametrize("answers", [3, 10, 40])
def test_what_a_store_gave_before_it_refused_is_not_asked_for_again(objects, clock, answers):
    for rank in range(4):
        for number in range(50):
            writer_of(objects, rank, clock).write([fact(100 * rank + number)])
    reads, left = [], [0]

    def read(path, start=0, end=None):
        if left[0] <= 0:
            raise StoreError("unreachable")
        left[0] -= 1
        reads.append(path) if path.startswith("attempts/0000/segments") else None
        return Counting.read(objects, path, start, end)

    objects.read = read
    reader, found, refused = RunReader(objects, clock=clock), [], 0
    for _ in range(200):
        left[0] = answers
        clock.pass_s(1)
        try:
            found += numbers(reader.poll())
        except StoreError:
            refused += 1
    assert sorted(found) == [100 * rank + number for rank in range(4) for number in range(50)]
    assert reader.problems == []
    # Nothing twice, but for what was under way in a call that was refused: ever fewer objects.
    assert len(reads) <= 200 + 128
    assert refused > 0


def test_a_store_that_has_just_refused_is_not_asked_again_in_the_same_poll(objects, clock):
    for rank in range(4):
        writer_of(objects, rank, clock).write([fact(rank)])
    asked = []

    def refuse(ranges):
        asked.append(len(ranges))
        raise StoreError("unreachable")

    objects.read_many = refuse
    objects.taken()
    with pytest.raises(StoreError, match="unreachable"):
        RunReader(objects, clock=clock).poll()
    assert asked == [4]
    assert not [path for path in objects.taken("read") if path.startswith("attempts/0000/segments")]


def test_workers_of_attempts_that_are_over_make_no_poll_of_a_quiet_folder_dearer(tmp_path, clock):
    store = begun(Counting(tmp_path))
    for attempt in range(10):
        if attempt:
            create_attempt(store, "")
        SegmentWriter(store, attempt, "worker_0", clock=clock).write([fact(attempt)])
    reader = RunReader(store, clock=clock)
    for _ in range(20):
        clock.pass_s(0.01)
        reader.poll()
    store.taken()
    for _ in range(10):
        clock.pass_s(0.01)
        assert reader.poll() == []
    assert Counter(what for what, _ in store.asked) == {"size": 20}


def test_a_worker_whose_clock_is_a_day_ahead_hides_no_other(objects, clock):
    late, early = writer_of(objects, 0, clock), writer_of(objects, 1, clock.ahead(DAY))
    reader = RunReader(objects, clock=clock)
    seen = []
    for number in range(20):
        late.write([fact(number)])
        early.write([fact(100 + number)])
        seen += numbers(reader.poll())
        assert number in seen
        clock.pass_s(20)


def test_a_worker_that_ended_holds_no_bucket_open(objects, clock):
    for rank in (0, 1):
        writer_of(objects, rank, clock).write([fact(rank)])
    reader = RunReader(objects, clock=clock)
    reader.poll()
    writer = writer_of(objects, 1, clock)
    for number in range(40):
        clock.pass_s(10)
        writer.write([fact(number)])
        reader.poll()
    objects.taken()
    clock.pass_s(1)
    reader.poll()
    newest = clock.wall // (MINUTE * 10**9)
    assert objects.taken("list") == [layout.segments(0, newest - 2)]


def test_a_clock_far_behind_is_found_within_half_a_minute(objects, clock):
    reader = RunReader(objects, clock=clock)
    writer_of(objects, 0, clock).write([fact(0)])
    reader.poll()
    behind = writer_of(objects, 1, clock.ahead(-DAY))
    behind.write([fact(1)])
    clock.pass_s(15)
    assert numbers(reader.poll()) == []
    clock.pass_s(16)
    assert numbers(reader.poll()) == [1]
    clock.pass_s(2)
    behind.write([fact(2)])
    assert numbers(reader.poll()) == [2]  # once it is known, like everybody's


class Long(Objects):
    """A store with so many old segments that a listing of all takes 41 requests."""

    def list(self, prefix="", after=""):
        old = [layout.segment(0, 999_000, "worker_0", number) for number in range(40_000)] if not after else []
        return super().list(prefix, after) + [StoredObject(path, 100) for path in old]


def test_listings_of_everything_become_rarer_the_more_there_is_to_list(tmp_path, clock):
    store = begun(Long(tmp_path))
    discovery = SegmentDiscovery(store, clock=clock)
    assert len(discovery.find()) == 40_000
    store.taken()
    for _ in range(4):
        clock.pass_s(30)
        discovery.find()
    assert store.taken("list").count("") == 0
    clock.pass_s(30)
    discovery.find()
    assert store.taken("list").count("") == 1


def test_the_next_attempt_is_found_while_nothing_comes(objects, clock):
    writer_of(objects, 0, clock).write([fact(0)])
    reader = RunReader(objects, clock=clock)
    reader.poll()
    create_attempt(objects, "")
    SegmentWriter(objects, 1, "worker_0", clock=clock).write([fact(1)])
    clock.pass_s(2)
    objects.taken()
    assert numbers(reader.poll()) == []
    assert objects.taken("read") == []
    clock.pass_s(10)
    assert numbers(reader.poll()) == [1]


def test_a_quiet_folder_is_only_checked(tmp_path, clock):
    store = begun(Counting(tmp_path))
    writer, reader = writer_of(store, 0, clock), RunReader(store, clock=clock)
    writer.write([fact(0)])
    for _ in range(3):
        reader.poll()
    store.taken()
    clock.pass_s(0.1)
    assert reader.poll() == []
    assert [which for which, _ in store.asked] == ["size", "size"]
    writer.write([fact(1)])
    assert numbers(reader.poll()) == [1]
    for _ in range(3):
        reader.poll()
    SegmentWriter(store, 0, "worker_0", clock=clock).write([fact(2)])  # the next segment, of a process that took over
    assert numbers(reader.poll()) == [2]
    for _ in range(3):
        reader.poll()
    writer_of(store, 1, clock).write([fact(3)])
    assert numbers(reader.poll()) == []
    clock.pass_s(0.6)
    assert numbers(reader.poll()) == [3]


def test_every_worker_gets_its_share_of_a_poll(tmp_path, clock):
    store = begun(Counting(tmp_path))
    for rank in range(4):
        writer = SegmentWriter(store, 0, f"worker_{rank}", clock=clock, rotate_bytes=70_000)
        for number in range(20):
            writer.write([encode_frame(FrameKind.FACTS, b"%30000d" % (100 * rank + number))])
    reader, taken = RunReader(store, clock=clock), dict.fromkeys(range(4), 0)
    while found := reader.poll(max_bytes=130_000):
        for number in numbers(found):
            taken[number // 100] += 1
        assert max(taken.values()) - min(taken.values()) < 20
        if sum(taken.values()) < 80:
            assert reader.waiting
    assert set(taken.values()) == {20}
    assert reader.waiting == set()


def test_one_attempt_can_be_read_alone(tmp_path, clock):
    store = begun(Counting(tmp_path))
    writer_of(store, 0, clock).write([fact(0)])
    create_attempt(store, "")
    SegmentWriter(store, 1, "worker_0", clock=clock).write([fact(1)])
    assert numbers(RunReader(store, attempt=1).poll()) == [1]
    assert numbers(RunReader(store, attempt=0).poll()) == [0]
