"""Disks that are full, read-only or without hard links."""

import errno
import os

import pytest

from store_segments import fact, new_store, numbers, segment
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


def full_disk(after=0):
    """An os.write that writes ``after`` bytes and then finds the disk full."""
    real, left = os.write, [after]

    def write(descriptor, data):
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(descriptor, bytes(data[: left[0]]))
        left[0] -= written
        return written

    return write


@pytest.mark.parametrize("partly", [0, 1, 17, 25])
def test_a_full_disk_loses_nothing_that_is_written_again(store, monkeypatch, partly):
    writer, reader = SegmentWriter(store, 0, "worker_0"), RunReader(store)
    writer.write([fact(0)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk(partly))
        for _ in range(2):
            with pytest.raises(StoreError, match="disk is full") as caught:
                writer.write([fact(1), fact(2)])
            assert "\n" not in str(caught.value)
    writer.write([fact(1), fact(2)])
    writer.write([fact(3)])
    assert numbers(reader.poll()) == [0, 1, 2, 3]
    assert reader.problems == []


def test_a_torn_append_that_cannot_be_undone_hides_nothing(store, monkeypatch):
    def no_truncate(*_):
        raise OSError(errno.EIO, "Input/output error")

    writer = SegmentWriter(store, 0, "worker_0")
    writer.write([fact(0)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk(5))
        patch.setattr(os, "ftruncate", no_truncate)
        with pytest.raises(StoreError):
            writer.write([fact(1)])
    writer.write([fact(1)])
    reader = RunReader(store)
    assert numbers(reader.poll()) == [0, 1]
    assert "ends within a frame" in reader.problems[0].what


def test_a_full_disk_leaves_no_half_object(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk(3))
        with pytest.raises(StoreError, match="full"):
            store.write("control/stop/0000/0000/request", b"0123456789")
    assert store.list("control") == []
    assert list((store.root / "control" / "stop" / "0000" / "0000").iterdir()) == []


@pytest.mark.parametrize("after", [0, 3, 6, 700])
def test_parts_on_a_disk_that_fills_up(store, monkeypatch, after):
    parts = [b"abc", b"defg", *[b"x" * 11] * 2000]

    def writev(descriptor, buffers, *, left=[after]):  # noqa: B006  the room that is left, over calls
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        data = b"".join(buffers)[: left[0]]
        left[0] -= len(data)
        return os.write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", writev)
        with pytest.raises(StoreError, match="disk is full"):
            store.write("parts", parts)
        assert store.list("parts") == []
        assert not [name for name in os.listdir(store.root) if name.startswith(".")]
    store.write("parts", parts)
    assert store.read("parts") == b"".join(parts)


def test_a_system_that_writes_a_little_at_a_time_gets_it_all(store, monkeypatch):
    parts = [b"abc", memoryview(b"defg"), b"hi"]
    monkeypatch.setattr(os, "writev", lambda descriptor, buffers: os.write(descriptor, b"".join(buffers)[:2]))
    store.write("parts", parts)
    assert store.read("parts") == b"abcdefghi"


def test_a_journal_on_a_full_disk_can_be_written_later(store, monkeypatch):
    with JournalWriter(store) as journal:
        journal.write([RuleStatus("a", Status.IN_PROGRESS)])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full_disk(20))
            with pytest.raises(StoreError, match="full"):
                journal.write([RuleStatus("b", Status.IN_PROGRESS)])
        journal.write([RuleStatus("b", Status.IN_PROGRESS)])
    assert len(RunReader(store).journal()) == 2


def no_hard_links(*_args, **_kwargs):
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")


def full_for_targets(room):
    """An os.write that has room for temporary files, and for ``room`` bytes of any other."""
    real, left = os.write, [room]

    def write(descriptor, data):
        if os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")).startswith(".wg-"):
            return real(descriptor, data)
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= (written := real(descriptor, bytes(data[: left[0]])))
        return written

    return write


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="this system has no /proc/self/fd")


@needs_proc
@pytest.mark.parametrize("removable", [True, False])
@pytest.mark.parametrize("pause_s", [0, 61])
def test_a_disk_without_hard_links_that_fills_up_loses_nothing(store, monkeypatch, removable, pause_s):
    clock = Clock()
    writer = SegmentWriter(store, 0, "worker_0", clock=clock)
    unlink = os.unlink

    def kept(path, **more):
        if not removable and "worker_0-" in str(path):
            raise OSError(errno.EIO, "Input/output error")
        unlink(path, **more)

    monkeypatch.setattr(os, "link", no_hard_links)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_for_targets(150))
        patch.setattr(os, "unlink", kept)
        with pytest.raises(StoreError, match="disk is full"):
            writer.write([fact(1), fact(2)])
    assert (store.list(layout.segments(0)) == []) == removable
    quick = RunReader(store)
    quick.poll()
    clock.ns += pause_s * 10**9
    writer.write([fact(1), fact(2)])
    writer.write([fact(3)])
    for reader in (quick, RunReader(store)):
        assert numbers(reader.poll(full=True)) == [1, 2, 3]
        assert ["ends within a frame" in problem.what for problem in reader.problems] == [True] * (not removable)
        assert reader.unfinished() == []


@needs_proc
@pytest.mark.parametrize("removable", [True, False])
def test_a_journal_on_a_disk_without_hard_links_that_fills_up_is_written_later(store, monkeypatch, removable):
    def kept(path, **more):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", no_hard_links)
    with JournalWriter(store) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full_for_targets(20))
            if not removable:
                patch.setattr(os, "unlink", kept)
            with pytest.raises(StoreError, match="full"):
                journal.write([RuleStatus("a", Status.IN_PROGRESS)])
        journal.write([RuleStatus("a", Status.IN_PROGRESS)])
        journal.write([RuleStatus("b", Status.IN_PROGRESS)])
    assert len(RunReader(store).journal()) == 2


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
    [(errno.EROFS, "read-only"), (errno.EACCES, "permission denied"), (errno.EDQUOT, "quota"),
     (errno.EIO, "check the disk")],
)  # fmt: skip
def test_a_disk_that_refuses_says_why_in_one_line(tmp_path, monkeypatch, number, cure):
    def refuse(*_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    store = LocalStore(tmp_path / "run")
    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(StoreError, match=cure) as caught:
        create_run(store, command=[])
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_device_that_is_really_full_is_named():
    store = LocalStore("/dev")
    with pytest.raises(StoreError, match="/dev/full"):
        store.append("full", b"x")
