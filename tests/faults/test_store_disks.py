"""Disks that are full, read-only or without hard links."""

import errno
import os
import signal
from contextlib import ExitStack

import pytest

from refusals import refused
from resource_limits import largest_file
from stores.store_segments import fact, new_store, numbers, segment
from watchglass.errors import StoreError
from watchglass.records import RuleStatus, Status
from watchglass.store import (
    JournalWriter,
    LocalStore,
    RunReader,
    SegmentWriter,
    create_run,
    layout,
)
from watchglass.store.new_files import write_all


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self):
        self.ns = 10**15

    def time_ns(self):
        return self.ns

    def monotonic_ns(self):
        return self.ns


@pytest.fixture
def store(tmp_path):
    return new_store(tmp_path / "run")


FULL = "the file exceeds the size limit"
EIO = OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("partly", [0, 1, 17, 25])
def test_a_full_disk_loses_nothing_that_is_written_again(store, partly):
    writer, reader = SegmentWriter(store, 0, "worker_0"), RunReader(store)
    writer.write([fact(0)])
    before = segment(store).stat().st_size
    with largest_file(before + partly):
        # The second time it begins a segment, which must not fit either.
        for _ in range(2):
            with pytest.raises(StoreError, match=FULL) as caught:
                writer.write([fact(1), fact(2), fact(10**40)])
            assert "\n" not in str(caught.value)
    assert segment(store).stat().st_size == before
    writer.write([fact(1), fact(2)])
    writer.write([fact(3)])
    assert numbers(reader.poll()) == [0, 1, 2, 3]
    assert reader.problems == []


def test_a_torn_append_that_cannot_be_undone_hides_nothing(store):
    writer = SegmentWriter(store, 0, "worker_0")
    writer.write([fact(0)])
    before = segment(store).stat().st_size
    # The full disk is reported, not the cut that failed after it.
    with largest_file(before + 5), refused("os.truncate", EIO) as cuts, pytest.raises(StoreError, match=FULL):
        writer.write([fact(1)])
    assert len(cuts) == 1
    assert segment(store).stat().st_size == before + 5
    writer.write([fact(1)])
    reader = RunReader(store)
    assert numbers(reader.poll()) == [0, 1]
    assert "ends within a frame" in reader.problems[0].what


def test_a_full_disk_leaves_no_half_object(store):
    with largest_file(3), pytest.raises(StoreError, match=FULL):
        store.write("control/stop/0000/0000/request", b"0123456789")
    assert store.list("control") == []
    assert list((store.root / "control" / "stop" / "0000" / "0000").iterdir()) == []


@pytest.mark.parametrize("after", [0, 3, 6, 700])
def test_parts_on_a_disk_that_fills_up(store, after):
    parts = [b"abc", b"defg", *[b"x" * 11] * 2000]
    with largest_file(after), pytest.raises(StoreError, match=FULL):
        store.write("parts", parts)
    assert store.list("parts") == []
    assert not [name for name in os.listdir(store.root) if name.startswith(".")]
    store.write("parts", parts)
    assert store.read("parts") == b"".join(parts)


def test_a_system_that_writes_a_little_at_a_time_gets_it_all():
    """A pipe takes what its buffer holds; its reader makes room for the rest."""
    readable, writable = os.pipe()
    parts = [b"abc", memoryview(b"x" * 1_000_000), b"hi"]
    taken = []

    def interrupted(*_):
        taken.append(os.read(readable, 1 << 16))

    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        # A signal ends a write that waits for room after a part of the bytes.
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        write_all(writable, parts)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.close(writable)
    with os.fdopen(readable, "rb") as rest:
        assert b"".join(taken) + rest.read() == b"".join(parts)
    assert len(taken) > 2


def test_a_journal_on_a_full_disk_can_be_written_later(store):
    with JournalWriter(store) as journal:
        journal.write([RuleStatus("a", Status.IN_PROGRESS)])
        with largest_file(20), pytest.raises(StoreError, match=FULL):
            journal.write([RuleStatus("b", Status.IN_PROGRESS)])
        journal.write([RuleStatus("b", Status.IN_PROGRESS)])
    assert len(RunReader(store).journal()) == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("parts", [b"x", [b"x", b"y"]], ids=["one part", "two parts"])
def test_a_device_that_is_really_full_says_so_and_is_no_file_of_a_run(parts):
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with os.fdopen(descriptor, "wb"), pytest.raises(OSError, match="No space left") as caught:
        write_all(descriptor, parts)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(StoreError, match="/dev/full"):
        LocalStore("/dev").append("full", b"x")


class WithoutLinks:
    """A file system without hard links, on which a copy is full after so many bytes and may not be removable."""

    def __init__(self):
        self.room, self.removable = None, True
        self.limit = ExitStack()

    def __call__(self, temporary, target):
        if self.room is not None:
            self.limit.enter_context(largest_file(self.room))
            if not self.removable:
                self.limit.enter_context(refused("os.remove", EIO, lambda path, _: os.fspath(path) == str(target)))
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")


@pytest.fixture
def links():
    return WithoutLinks()


@pytest.fixture
def unlinked(store, links):
    """A run on a file system without hard links."""
    return LocalStore(store.root, links)


@pytest.mark.parametrize("removable", [True, False])
@pytest.mark.parametrize("pause_s", [0, 61])
def test_a_disk_without_hard_links_that_fills_up_loses_nothing(unlinked, links, removable, pause_s):
    clock = Clock()
    writer = SegmentWriter(unlinked, 0, "worker_0", clock=clock)
    links.room, links.removable = 150, removable
    with links.limit, pytest.raises(StoreError, match=FULL):
        writer.write([fact(1), fact(2)])
    links.room = None
    assert (unlinked.list(layout.segments(0)) == []) == removable
    quick = RunReader(unlinked)
    quick.poll()
    clock.ns += pause_s * 10**9
    writer.write([fact(1), fact(2)])
    writer.write([fact(3)])
    for reader in (quick, RunReader(unlinked)):
        assert numbers(reader.poll(full=True)) == [1, 2, 3]
        assert ["ends within a frame" in problem.what for problem in reader.problems] == [True] * (not removable)
        assert reader.unfinished() == []


@pytest.mark.parametrize("removable", [True, False])
def test_a_journal_on_a_disk_without_hard_links_that_fills_up_is_written_later(unlinked, links, removable):
    with JournalWriter(unlinked) as journal:
        links.room, links.removable = 20, removable
        with links.limit, pytest.raises(StoreError, match=FULL):
            journal.write([RuleStatus("a", Status.IN_PROGRESS)])
        links.room = None
        assert (unlinked.size(layout.numbered(layout.JOURNAL, 0)) is None) == removable
        journal.write([RuleStatus("a", Status.IN_PROGRESS)])
        journal.write([RuleStatus("b", Status.IN_PROGRESS)])
    assert len(RunReader(unlinked).journal()) == 2


def test_of_two_segments_with_one_number_the_later_counts(store):
    """What a failed write left may lie in the bucket before that of the write that succeeded."""
    SegmentWriter(store, 0, "worker_0", clock=Clock()).write([fact(0), fact(1)])
    path = segment(store)
    torn = path.read_bytes()[:-3]
    later = store.root / layout.segment(
        0, layout.parse_segment(store.list("attempts")[-1].path).bucket + 1, "worker_0", 0
    )
    whole = path.read_bytes()
    path.write_bytes(torn)
    quick = RunReader(store)
    assert numbers(quick.poll()) == [0]
    later.parent.mkdir()
    later.write_bytes(whole)
    assert numbers(RunReader(store).poll()) == [0, 1]
    assert numbers(quick.poll(full=True)) == [0, 1]
    assert [numbers(quick.poll(full=True)) for _ in range(3)] == [[]] * 3


@pytest.mark.parametrize(
    ("number", "cure"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EACCES, "permission denied"),
     (errno.EDQUOT, "quota"), (errno.EIO, "check the disk")],
)  # fmt: skip
def test_a_disk_that_refuses_says_why_in_one_line(tmp_path, number, cure):
    def refuse(temporary, target):
        raise OSError(number, os.strerror(number))

    store = LocalStore(tmp_path / "run", refuse)
    with pytest.raises(StoreError, match=cure) as caught:
        create_run(store, command=[])
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
