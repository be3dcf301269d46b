"""Objects of a spool arrive once, whole and in order, whichever process sends them."""

from __future__ import annotations

import os
import resource
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from resource_limits import largest_file, limited
from stores.faulty_stores import spools
from stores.slow_spools import LABEL, Remote, open_spool, remote, segment, tensors
from waiting import PATIENCE_S, until
from watchglass.config import TIMING, Timing
from watchglass.errors import NoRoomError, RunExistsError, StoreError
from watchglass.records import FACTS, Fact
from watchglass.store import (
    FrameKind,
    LocalStore,
    RunReader,
    SegmentWriter,
    abandoned_labels,
    create_attempt,
    decode_rows,
    encode_facts,
    is_alive,
    send_abandoned,
    spool_exists,
    this_process,
)
from watchglass.store.spool import spool

__all__ = ["open_spool", "remote", "spools"]


def test_objects_arrive_in_order_and_nothing_is_left(remote: Remote, open_spool: Any, spools: Path) -> None:
    one = open_spool()
    for seq in range(20):
        one.write(tensors(seq), [b"raw", memoryview(bytes([seq]))])
        one.write(segment(seq), b"%d" % seq)
    one.close()
    assert remote.written == [path for seq in range(20) for path in (tensors(seq), segment(seq))]
    assert remote.read(segment(7)) == b"7"
    assert remote.read(tensors(7)) == b"raw\x07"
    assert one.waiting_bytes == 0
    assert list(spools.glob("*/*.spool")) == []


def test_writing_never_waits_for_the_store(remote: Remote, open_spool: Any) -> None:
    remote.gate.clear()  # as with a server that accepts and never answers
    one = open_spool()
    for seq in range(20):
        one.write(segment(seq), bytes(100))
    assert one.waiting_bytes == 2000
    assert remote.written == []
    remote.gate.set()
    one.close()
    assert len(remote.written) == 20


def test_what_waits_on_the_disk_is_whole_and_named(remote: Remote, open_spool: Any) -> None:
    remote.unreachable = True
    one = open_spool()
    one.write(segment(0), b"first")
    one.write(tensors(0), b"second")
    files = sorted(path.name for path in Path(one.folder).iterdir())
    assert files == [
        "000000000000~attempts%2F0000%2Fsegments%2F000000000007%2Fworker_0-00000000",
        "000000000001~attempts%2F0000%2Ftensors%2Fworker_0-00000000.safetensors",
        "label",
    ]
    assert Path(one.folder).stat().st_mode & 0o777 == 0o700


def test_pauses_grow_and_the_end_of_the_training_cuts_them_short(remote: Remote, open_spool: Any) -> None:
    remote.unreachable = True
    one = open_spool(timing=Timing(upload_pauses_s=(600.0, 600.0)))
    one.write(segment(0), b"x")
    until(lambda: remote.tries == 1)
    time.sleep(0.05)
    assert remote.tries == 1
    remote.unreachable = False
    began = time.monotonic()
    one.close()
    assert time.monotonic() - began < PATIENCE_S
    assert remote.written == [segment(0)]


def test_a_full_spool_refuses_raw_tensors_first_and_takes_more_when_it_can(remote: Remote, open_spool: Any) -> None:
    remote.unreachable = True
    one = open_spool()
    one.write(tensors(0), bytes(7000))
    with pytest.raises(NoRoomError, match=r"7000 bytes are buffered in .*worker_0-.*\.spool"):
        one.write(tensors(1), bytes(1000))
    one.write(segment(0), bytes(2900))
    with pytest.raises(NoRoomError, match="raise spool_bytes"):
        one.write(segment(1), bytes(200))
    remote.unreachable = False
    until(lambda: one.waiting_bytes == 0)
    one.write(segment(1), bytes(200))
    one.close()
    assert remote.written == [tensors(0), segment(0), segment(1)]


def test_a_disk_that_is_full_is_done_without_as_far_as_memory_goes(
    remote: Remote, open_spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    remote.unreachable = True
    one = open_spool()
    one.write(segment(0), b"on the disk")
    with largest_file(100):
        one.write(segment(1), bytes(600))
    assert "File too large" in caplog.text
    # The disk has room again, but no object may overtake another: what dies with the process must be the end.
    one.write(segment(2), bytes(300))
    with pytest.raises(NoRoomError, match="900 bytes are buffered in memory"):
        one.write(segment(3), bytes(200))
    assert len(list(Path(one.folder).glob("*~*"))) == 1
    remote.unreachable = False
    one.close()
    assert remote.written == [segment(0), segment(1), segment(2)]


def test_a_disk_that_refuses_in_the_middle_leaves_nothing_behind(remote: Remote, open_spool: Any) -> None:
    remote.unreachable = True
    one = open_spool()
    with largest_file(5):
        one.write(segment(0), b"in memory")
    assert [path.name for path in Path(one.folder).iterdir()] == ["label"]
    in_the_way = Path(one.folder) / f"{1:012}~{quote(segment(1), safe='')}"
    in_the_way.mkdir()
    one.write(segment(1), b"in memory too")
    in_the_way.rmdir()
    assert [path.name for path in Path(one.folder).iterdir()] == ["label"]
    remote.unreachable = False
    one.close()
    assert remote.read(segment(0)) == b"in memory"


def test_raw_tensors_leave_room_in_memory_as_they_do_on_the_disk(remote: Remote, open_spool: Any) -> None:
    remote.unreachable = True
    one = open_spool(most_bytes=0, memory_bytes=1000)
    with pytest.raises(NoRoomError, match="exceed the limit of 750"):
        one.write(tensors(0), bytes(751))
    one.write(tensors(0), bytes(750))
    one.write(segment(0), bytes(250))
    assert one.memory_bytes == 1000


def test_without_a_disk_there_is_memory(remote: Remote, open_spool: Any) -> None:
    one = open_spool(most_bytes=0)
    assert one.folder == ""
    one.write(segment(0), [b"a", b"b"])
    one.close()
    assert remote.read(segment(0)) == b"ab"


def test_where_no_folder_can_be_made_there_is_memory(remote: Remote, open_spool: Any, spools: Path) -> None:
    spools.rmdir()
    one = open_spool()
    assert (one.folder, bool(one.refused)) == ("", True)
    one.write(segment(0), b"x")
    one.close()
    assert remote.written == [segment(0)]


def test_an_object_that_arrived_without_an_answer_is_done(remote: Remote, open_spool: Any) -> None:
    LocalStore.write(remote, segment(0), b"same")
    one = open_spool()
    one.write(segment(0), b"same")
    one.write(segment(1), b"next")
    one.close()
    assert remote.written == [segment(1)]


def test_an_object_of_another_writer_ends_it_with_one_line(
    remote: Remote, open_spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    LocalStore.write(remote, segment(0), b"theirs")
    one = open_spool()
    one.write(segment(0), b"ours!!")

    until(lambda: bool(caplog.messages))
    with pytest.raises(RunExistsError, match="give each process its own rank"):
        one.write(segment(1), b"x")
    one.close()
    assert remote.read(segment(0)) == b"theirs"
    assert len([text for text in caplog.messages if "another process" in text]) == 1


def test_what_replaces_does_not_wait(remote: Remote, open_spool: Any) -> None:
    one = open_spool()
    with pytest.raises(StoreError, match="replaces nothing"):
        one.write("control/x", b"", replace=True)
    one.close()
    with pytest.raises(StoreError, match="closed"):
        one.write(segment(0), b"")


def test_everything_else_is_what_the_store_says(remote: Remote, open_spool: Any) -> None:
    remote.write("a/b", b"content")
    one = open_spool()
    assert one.read("a/b", 1, 3) == b"on"
    assert [entry.path for entry in one.list()] == ["a/b"]
    assert one.size("a/b") == 7
    assert one.folders() == ["a"]
    assert bytes(one.map("a/b")) == b"content"
    assert one.read_many([("a/b", 0, 1), ("a/c", 0, 1)]) == [b"c", None]
    assert not one.is_empty()
    one.delete("a/b")
    assert one.list() == []
    one.prune()
    assert one.is_empty()


def test_the_end_gives_up_in_time_and_says_what_waits_where(
    remote: Remote, open_spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    remote.unreachable = True
    one = open_spool()
    one.write(segment(0), bytes(123))
    one.close(0.05)
    message = caplog.messages[-1]
    assert "123 bytes of worker_0 are buffered in" in message
    assert one.folder in message
    assert "watchglass follow" in message
    assert spool_exists(one.folder)
    assert not [thread for thread in threading.enumerate() if thread.name == "watchglass-uploader"]


def test_a_slow_store_is_waited_for_while_it_makes_progress(remote: Remote, open_spool: Any) -> None:
    remote.takes_s = 0.1
    one = open_spool()
    for seq in range(14):
        one.write(segment(seq), b"x")
    one.close(1.0)
    assert len(remote.written) == 14


def test_a_store_that_never_answers_blocks_no_end(
    remote: Remote, open_spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    remote.gate.clear()
    one = open_spool()
    one.write(segment(0), b"x")
    one.close(0.05)
    remote.gate.set()
    assert "buffered in" in caplog.text


def test_the_end_says_what_it_waits_for(remote: Remote, open_spool: Any, caplog: pytest.LogCaptureFixture) -> None:
    remote.unreachable = True
    one = open_spool(timing=Timing(silent_end_s=0.0))
    one.write(segment(0), bytes(123))
    one.close(0.05)
    (message,) = [message for message in caplog.messages if "script has ended" in message]
    assert "123 bytes of worker_0" in message
    assert f"Ctrl-C leaves the rest in {one.folder}" in message


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that is about to end."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.usefixtures("no_threads")
def test_an_interpreter_that_begins_no_threads_any_more_sends_at_the_end(remote: Remote, open_spool: Any) -> None:
    one = open_spool()
    for seq in range(5):
        one.write(segment(seq), b"x")
    assert remote.written == []
    one.close()
    assert remote.written == [segment(seq) for seq in range(5)]
    assert not spool_exists(one.folder)


@pytest.mark.usefixtures("no_threads")
def test_without_threads_the_end_gives_up_in_time_too(remote: Remote, open_spool: Any) -> None:
    remote.unreachable = True
    one = open_spool(timing=Timing(upload_pauses_s=(0.05, 0.05)))
    one.write(segment(0), b"x")
    one.close(0.2)
    assert 1 <= remote.tries < 10
    assert spool_exists(one.folder)


@pytest.mark.usefixtures("no_threads")
def test_without_threads_the_end_tries_again(remote: Remote, open_spool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = open_spool()
    one.write(segment(0), b"x")
    write = remote.write

    def third_time(path: str, data: Any, *, replace: bool = False) -> None:
        remote.unreachable = remote.tries < 2
        write(path, data, replace=replace)

    monkeypatch.setattr(remote, "write", third_time)
    one.close()
    assert remote.tries == 3
    assert remote.written == [segment(0)]
    assert not spool_exists(one.folder)


def test_a_process_that_is_short_of_files_loses_none_that_waits(
    remote: Remote, open_spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one = open_spool()
    remote.gate.clear()
    one.write(segment(0), b"first")
    one.write(segment(1), b"whole")
    with limited(resource.RLIMIT_NOFILE, 3):
        remote.gate.set()
        until(lambda: "too many" in caplog.text.lower())
        tries = remote.tries
        time.sleep(0.1)
        assert remote.tries == tries, "what cannot be read is not sent"
    one.close()
    assert (remote.read(segment(0)), remote.read(segment(1))) == (b"first", b"whole")
    assert "is lost" not in caplog.text


def test_what_the_disk_has_lost_hides_nothing_of_what_comes_behind_it(
    remote: Remote, open_spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder for temporary files that somebody cleans up while the store is unreachable."""
    assert create_attempt(remote, "launch", lambda attempt: True) == 0
    remote.written.clear()
    one, frames = open_spool(), [encode_facts([Fact("note", at, "test", {})]) for at in range(3)]
    writer = SegmentWriter(one, 0, "worker_0", first=True)
    writer.write(frames[:1])
    until(lambda: len(remote.written) == 1)
    remote.unreachable = True
    writer.write(frames[1:2])
    one.write(tensors(0), b"raw")
    for file in Path(one.folder).glob("*~*"):
        file.unlink()
    writer.write(frames[2:])
    # What was read before still waits to be sent: the second try from now on begins without it.
    tries = remote.tries
    until(lambda: remote.tries >= tries + 2)
    remote.unreachable = False
    one.close()
    reader = RunReader(remote)
    facts = [frame for *_, frame in reader.poll(full=True) if frame.kind == FrameKind.FACTS]
    assert [decode_rows(FACTS, frame.payload)["global_step"].tolist() for frame in facts] == [[0], [2]]
    assert [problem.what for problem in reader.problems] == ["damaged frame; the rest is skipped"]
    assert remote.size(tensors(0)) is None
    assert len([message for message in caplog.messages if "is lost" in message]) == 2


@pytest.mark.parametrize("error", [StoreError("the store is unreachable; see to it"), RuntimeError("broken")])
def test_a_listener_is_notified_of_what_arrived_and_disturbs_no_other(
    remote: Remote, open_spool: Any, error: Exception
) -> None:
    one, reported = open_spool(), []

    def arrived(path: str, size: int) -> None:
        assert remote.size(path) == size
        reported.append(path)
        raise error

    one.arrived = arrived
    one.write(tensors(0), b"raw")
    one.write(segment(0), b"x")
    one.close()
    assert reported == [tensors(0), segment(0)]


def test_what_a_living_process_has_given_up_anybody_may_send(remote: Remote, open_spool: Any) -> None:
    """A notebook goes on for days after its training."""
    one, other = open_spool(), open_spool()
    claim = replace(this_process(), spool=one.folder)
    remote.unreachable = True
    one.write(segment(0), b"x")
    other.write(segment(0), b"x")
    assert is_alive(claim)
    assert LABEL not in abandoned_labels()
    one.close(0.0)
    assert is_alive(claim) is False
    assert is_alive(replace(claim, spool=other.folder))
    assert abandoned_labels().count(LABEL) == 1
    remote.unreachable = False
    assert send_abandoned(remote, one.folder, LABEL) == 1
    assert not spool_exists(one.folder)


def test_a_name_of_a_spool_that_no_system_has_is_no_spool() -> None:
    assert not spool_exists(f"/a\0b/watchglass-{os.getuid()}/worker_0-1-a.spool")


def test_the_room_that_a_training_run_needs_for_itself_is_left_free(
    remote: Remote, open_spool: Any, spools: Path
) -> None:
    found = os.statvfs(spools)
    free = found.f_bavail * found.f_frsize
    remote.unreachable = True
    # Nearly all that is free, so that little is written should it be refused too late: other tests use the disk, too.
    one = open_spool(most_bytes=1 << 60, memory_bytes=0, reserve_bytes=max(0, free - (512 << 20)))
    with pytest.raises(NoRoomError):
        one.write(segment(0), [memoryview(bytes(1 << 20))] * 1024)
    assert list(Path(one.folder).glob("*~*")) == []


def test_constants_are_as_documented() -> None:
    assert TIMING.upload_pauses_s == (0.5, 30.0)
    assert (TIMING.upload_patience_s, TIMING.upload_limit_ratio) == (60.0, 10.0)
    assert spool.RAW_SHARE == 0.75
