"""What is handed to a spool arrives once, whole and in order, whoever sends it in the end."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from faulty_stores import spools
from waiting import PATIENCE_S, until
from watchglass.config import TIMING, Timing
from watchglass.errors import NoRoomError, RunExistsError, StoreError
from watchglass.records import Fact
from watchglass.store import (
    FrameKind,
    LocalStore,
    RunReader,
    SegmentWriter,
    Spool,
    abandoned_labels,
    create_attempt,
    decode_facts,
    encode_facts,
    is_alive,
    layout,
    locked_files,
    send_abandoned,
    spool_exists,
    this_process,
)
from watchglass.store.spool import abandoned, folder as spool_folder, sending, spool

__all__ = ["spools"]

LABEL = {"run": "r", "attempt": 0, "worker": "worker_0"}


class Remote(LocalStore):
    """A folder that takes whole objects only, and is away when it is told to be."""

    appends = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.away = False
        self.tries = 0
        self.written: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def write(self, path: str, data: Any, *, replace: bool = False) -> None:
        self.gate.wait()
        self.tries += 1
        if self.away:
            raise StoreError("the store is away; see to it")
        super().write(path, data, replace=replace)
        self.written.append(path)


@pytest.fixture
def remote(tmp_path: Path, spools: Path) -> Remote:
    return Remote(tmp_path / "remote")


@pytest.fixture
def open_spool(remote: Remote) -> Iterator[Any]:
    made: list[Spool] = []

    def opened(**settings: Any) -> Spool:
        quick = {"most_bytes": 10_000, "memory_bytes": 1000, "timing": Timing(upload_pauses_s=(0.005, 0.02))}
        made.append(Spool(remote, "worker_0", LABEL, **{**quick, **settings}))
        return made[-1]

    yield opened
    remote.away = False
    remote.gate.set()
    for one in made:
        one.close(0.0)


def segment(seq: int) -> str:
    return layout.segment(0, 7, "worker_0", seq)


def tensors(seq: int) -> str:
    return layout.tensors(0, "worker_0", seq)


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
    remote.away = True
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
    remote.away = True
    one = open_spool(timing=Timing(upload_pauses_s=(600.0, 600.0)))
    one.write(segment(0), b"x")
    until(lambda: remote.tries == 1)
    time.sleep(0.05)
    assert remote.tries == 1
    remote.away = False
    began = time.monotonic()
    one.close()
    assert time.monotonic() - began < PATIENCE_S
    assert remote.written == [segment(0)]


def test_a_full_spool_refuses_raw_tensors_first_and_takes_more_when_it_can(remote: Remote, open_spool: Any) -> None:
    remote.away = True
    one = open_spool()
    one.write(tensors(0), bytes(7000))
    with pytest.raises(NoRoomError, match=r"7000 bytes are buffered in .*worker_0-.*\.spool"):
        one.write(tensors(1), bytes(1000))
    one.write(segment(0), bytes(2900))
    with pytest.raises(NoRoomError, match="raise spool_bytes"):
        one.write(segment(1), bytes(200))
    remote.away = False
    until(lambda: one.waiting_bytes == 0)
    one.write(segment(1), bytes(200))
    one.close()
    assert remote.written == [tensors(0), segment(0), segment(1)]


def test_a_disk_that_is_full_is_done_without_as_far_as_memory_goes(
    remote: Remote, open_spool: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    remote.away = True
    one = open_spool()
    one.write(segment(0), b"on the disk")
    with monkeypatch.context() as patch:
        patch.setattr(spool_folder, "RESERVE_BYTES", 1 << 60)
        one.write(segment(1), bytes(600))
    assert "No space left" in caplog.text
    # The disk has room again, but nothing may overtake: what dies with the process must be the end.
    one.write(segment(2), bytes(300))
    with pytest.raises(NoRoomError, match="900 bytes are buffered in memory"):
        one.write(segment(3), bytes(200))
    assert len(list(Path(one.folder).glob("*~*"))) == 1
    remote.away = False
    one.close()
    assert remote.written == [segment(0), segment(1), segment(2)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_disk_that_refuses_in_the_middle_leaves_nothing_behind(
    remote: Remote, open_spool: Any, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    remote.away = True
    one = open_spool()

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        one.write(segment(0), b"in memory")
    assert [path.name for path in Path(one.folder).iterdir()] == ["label"]
    remote.away = False
    one.close()
    assert remote.read(segment(0)) == b"in memory"


def test_raw_tensors_leave_room_in_memory_as_they_do_on_the_disk(remote: Remote, open_spool: Any) -> None:
    remote.away = True
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


def test_where_no_folder_can_be_made_there_is_memory(
    remote: Remote, open_spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    one = open_spool()
    assert (one.folder, bool(one.refused)) == ("", True)
    one.write(segment(0), b"x")
    one.close()
    assert remote.written == [segment(0)]


def test_an_object_that_arrived_although_nobody_said_so_is_done(remote: Remote, open_spool: Any) -> None:
    LocalStore.write(remote, segment(0), b"same")
    one = open_spool()
    one.write(segment(0), b"same")
    one.write(segment(1), b"next")
    one.close()
    assert remote.written == [segment(1)]


def test_an_object_of_somebody_else_ends_it_with_one_line(
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


# What a process leaves


WRITE = """
import sys
from watchglass.config import TIMING, Timing
from watchglass.errors import StoreError
from watchglass.store import LocalStore, Spool, layout

class Away(LocalStore):
    appends = False
    def write(self, *args, **named):
        raise StoreError("away")

label = {"run": "r", "attempt": 0, "worker": "worker_0"}
one = Spool(Away(sys.argv[1]), "worker_0", label, most_bytes=1 << 20, memory_bytes=0)
for seq in range(5):
    one.write(layout.segment(0, 7, "worker_0", seq), b"%d" % seq)
    one.write(layout.tensors(0, "worker_0", seq), b"raw %d" % seq)
print(one.folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def left(remote: Remote) -> str:
    """A spool of a process that was killed."""
    command = [sys.executable, "-c", WRITE, str(remote.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        with pytest.raises(RunExistsError, match="is being written"):
            send_abandoned(remote, name, LABEL)
        process.kill()
    assert spool_exists(name)
    return name


def test_what_a_killed_process_left_is_sent_in_order_and_once(remote: Remote, left: str) -> None:
    assert send_abandoned(remote, left, LABEL) == 10
    assert remote.written == [path for seq in range(5) for path in (segment(seq), tensors(seq))]
    assert remote.read(segment(3)) == b"3"
    assert not spool_exists(left)
    assert send_abandoned(remote, left, LABEL) == 0


def test_half_of_it_may_be_there_already(remote: Remote, left: str) -> None:
    for seq in range(3):
        LocalStore.write(remote, segment(seq), b"%d" % seq)
    assert send_abandoned(remote, left, LABEL) == 10
    assert len(remote.written) == 7


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_folder_that_somebody_removes_meanwhile_leaves_nothing_open(
    remote: Remote, left: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Folders for temporary files are cleaned up by the system, too."""
    opened: list[spool_folder.AbandonedSpool] = []

    def watched(name: str, label: Any) -> spool_folder.AbandonedSpool | None:
        found = spool_folder.open_abandoned(name, label)
        if found is not None:
            opened.append(found)
            if when == "before":
                shutil.rmtree(name)
        return found

    def told(path: str) -> None:
        if when == "after" and not list(Path(left).glob("*~*")):
            shutil.rmtree(left)

    monkeypatch.setattr(abandoned, "open_abandoned", watched)
    if when == "before":
        with pytest.raises(StoreError, match="cannot be read"):
            send_abandoned(remote, left, LABEL)
    else:
        assert send_abandoned(remote, left, LABEL, told) > 1
    assert send_abandoned(remote, left, LABEL) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0]._lock)


def test_a_store_that_goes_away_again_gets_the_rest_another_time(remote: Remote, left: str) -> None:
    def enough(path: str) -> None:
        remote.away = path == segment(2)

    with pytest.raises(StoreError, match="away"):
        send_abandoned(remote, left, LABEL, enough)
    assert spool_exists(left)
    assert len(remote.written) == 5
    remote.away = False
    assert send_abandoned(remote, left, LABEL) == 5
    assert remote.written == [path for seq in range(5) for path in (segment(seq), tensors(seq))]


def test_an_object_that_was_being_written_when_the_process_died_is_no_object(remote: Remote, left: str) -> None:
    (Path(left) / "000000000010.part").write_bytes(b"hal")
    assert send_abandoned(remote, left, LABEL) == 10


@pytest.mark.parametrize(
    "path",
    [
        "run.json", "../x", "/etc/passwd", "attempts/0000/segments/000000000007/worker_1-00000000",
        "attempts/0001/segments/000000000007/worker_0-00000000", "journal/00000000", "control/stop/0000/0000/request",
        "attempts/0000/tensors/worker_1-00000000.safetensors", "attempts/0000/tensors/worker_0-x.safetensors",
    ],
)  # fmt: skip
def test_a_spool_holds_nothing_but_what_its_worker_may_write(remote: Remote, left: str, path: str) -> None:
    from urllib.parse import quote

    (Path(left) / f"000000000099~{quote(path, safe='')}").write_bytes(b"planted")
    assert send_abandoned(remote, left, LABEL) == 10
    assert all("worker_0" in entry.path and remote.read(entry.path) != b"planted" for entry in remote.list())


def test_a_spool_of_another_run_is_left_alone(remote: Remote, left: str) -> None:
    assert send_abandoned(remote, left, {**LABEL, "run": "another"}) == 0
    assert spool_exists(left)
    assert remote.written == []


def test_a_claim_can_name_nothing_but_a_spool_of_this_user(remote: Remote, left: str, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "worker_0-1-a.spool").symlink_to(left)
    linked = tmp_path / f"watchglass-{os.getuid()}"
    linked.symlink_to(Path(left).parent)
    private = Path(left).parent
    (private / "link.spool").symlink_to(left)
    (private / "notes").mkdir()
    for name in ("", "x.spool", "/etc", f"{folder}/worker_0-1-a.spool", f"{linked}/{Path(left).name}",
                 f"{private}/link.spool", f"{private}/notes", f"{private}/../{private.name}/{Path(left).name}/..",
                 f"{private}/{Path(left).name}/label"):  # fmt: skip
        assert not spool_exists(name), name
        assert send_abandoned(remote, name, LABEL) == 0
    assert spool_exists(left)


def test_a_spool_that_nobody_comes_for_is_forgotten_after_a_week_unless_its_writer_lives(
    remote: Remote, left: str, open_spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    remote.away = True
    ours = open_spool()
    ours.write(segment(0), b"x")
    long_ago = time.time() - 8 * 86400
    os.utime(ours.folder, (long_ago, long_ago))
    command = [sys.executable, "-c", WRITE, str(remote.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        living = process.stdout.readline().strip()
        os.utime(living, (long_ago, long_ago))
        locked_files.private_folder(Path(left).parent.parent)
        assert spool_exists(left), "it is not a week old"
        os.utime(left, (long_ago, long_ago))
        locked_files.private_folder(Path(left).parent.parent)
        assert not spool_exists(left)
        assert spool_exists(living)
        assert spool_exists(ours.folder)
        process.kill()
    assert "no process sent its records to their store within a week" in caplog.text


def test_the_end_gives_up_in_time_and_says_what_waits_where(
    remote: Remote, open_spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    remote.away = True
    one = open_spool()
    one.write(segment(0), bytes(123))
    one.close(0.05)
    told = caplog.messages[-1]
    assert "123 bytes of worker_0 are buffered in" in told
    assert one.folder in told
    assert "watchglass follow" in told
    assert spool_exists(one.folder)
    assert not [thread for thread in threading.enumerate() if thread.name == "watchglass-uploader"]


def test_a_slow_store_is_waited_for_while_it_makes_progress(
    remote: Remote, open_spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(path: str, data: Any, *, replace: bool = False) -> None:
        time.sleep(0.1)
        LocalStore.write(remote, path, data)
        remote.written.append(path)

    monkeypatch.setattr(remote, "write", slowly)
    one = open_spool()
    for seq in range(14):
        one.write(segment(seq), b"x")
    one.close(1.0)
    assert len(remote.written) == 14


def test_a_store_that_never_answers_ends_nobodys_end(
    remote: Remote, open_spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    remote.gate.clear()
    one = open_spool()
    one.write(segment(0), b"x")
    one.close(0.05)
    remote.gate.set()
    assert "buffered in" in caplog.text


def test_the_end_says_what_it_waits_for(remote: Remote, open_spool: Any, caplog: pytest.LogCaptureFixture) -> None:
    remote.away = True
    one = open_spool(timing=Timing(silent_end_s=0.05))
    one.write(segment(0), bytes(123))
    one.close(0.3)
    (told,) = [message for message in caplog.messages if "script has ended" in message]
    assert "123 bytes of worker_0" in told
    assert f"Ctrl-C leaves the rest in {one.folder}" in told


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
    remote.away = True
    one = open_spool(timing=Timing(upload_pauses_s=(0.05, 0.05)))
    one.write(segment(0), b"x")
    one.close(1.0)
    assert 1 < remote.tries < 100
    assert spool_exists(one.folder)


def test_a_process_that_is_short_of_files_loses_none_that_waits(
    remote: Remote, open_spool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failures = sending.read_object, iter([errno.EMFILE, errno.ENOMEM])

    def short(found: Any) -> bytes:
        for number in failures:
            raise OSError(number, os.strerror(number))
        return read(found)

    monkeypatch.setattr(sending, "read_object", short)
    one = open_spool()
    one.write(segment(0), b"whole")
    one.close()
    assert remote.read(segment(0)) == b"whole"


def test_what_the_disk_has_lost_hides_nothing_of_what_comes_behind_it(
    remote: Remote, open_spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder for temporary files that somebody cleans up while the store is away."""
    assert create_attempt(remote, "launch", lambda attempt: True) == 0
    remote.written.clear()
    one, frames = open_spool(), [encode_facts([Fact("note", at, "test", {})]) for at in range(3)]
    writer = SegmentWriter(one, 0, "worker_0", first=True)
    writer.write(frames[:1])
    until(lambda: len(remote.written) == 1)
    remote.away = True
    writer.write(frames[1:2])
    one.write(tensors(0), b"raw")
    for file in Path(one.folder).glob("*~*"):
        file.unlink()
    writer.write(frames[2:])
    # What was read before still waits to be sent: the second try from now on begins without it.
    tries = remote.tries
    until(lambda: remote.tries >= tries + 2)
    remote.away = False
    one.close()
    reader = RunReader(remote)
    facts = [frame for *_, frame in reader.poll(full=True) if frame.kind == FrameKind.FACTS]
    assert [decode_facts(frame.payload)[0].global_step for frame in facts] == [0, 2]
    assert [problem.what for problem in reader.problems] == ["damaged frame; the rest is skipped"]
    assert remote.size(tensors(0)) is None
    assert len([message for message in caplog.messages if "is lost" in message]) == 2


@pytest.mark.parametrize("error", [StoreError("the store is away; see to it"), RuntimeError("broken")])
def test_who_wants_to_know_is_told_what_arrived_and_disturbs_nobody(
    remote: Remote, open_spool: Any, error: Exception
) -> None:
    one, told = open_spool(), []

    def arrived(path: str, size: int) -> None:
        assert remote.size(path) == size
        told.append(path)
        raise error

    one.arrived = arrived
    one.write(tensors(0), b"raw")
    one.write(segment(0), b"x")
    one.close()
    assert told == [tensors(0), segment(0)]


def test_what_a_living_process_has_given_up_anybody_may_send(remote: Remote, open_spool: Any) -> None:
    """A notebook goes on for days after its training."""
    one, other = open_spool(), open_spool()
    claim = replace(this_process(), spool=one.folder)
    remote.away = True
    one.write(segment(0), b"x")
    other.write(segment(0), b"x")
    assert is_alive(claim)
    assert LABEL not in abandoned_labels()
    one.close(0.0)
    assert is_alive(claim) is False
    assert is_alive(replace(claim, spool=other.folder))
    assert abandoned_labels().count(LABEL) == 1
    remote.away = False
    assert send_abandoned(remote, one.folder, LABEL) == 1
    assert not spool_exists(one.folder)


def test_a_name_of_a_spool_that_no_system_has_is_no_spool() -> None:
    assert not spool_exists(f"/a\0b/watchglass-{os.getuid()}/worker_0-1-a.spool")


def test_the_room_that_a_training_needs_for_itself_is_left_free(remote: Remote, open_spool: Any, spools: Path) -> None:
    found = os.statvfs(spools)
    free = found.f_bavail * found.f_frsize
    assert spool_folder.RESERVE_BYTES == 256 << 20
    remote.away = True
    one = open_spool(most_bytes=1 << 60, memory_bytes=0)
    with pytest.raises(NoRoomError):
        one.write(segment(0), [memoryview(bytes(1 << 20))] * (free // (1 << 20)))


def test_constants_are_as_documented() -> None:
    assert TIMING.upload_pauses_s == (0.5, 30.0)
    assert (TIMING.upload_patience_s, TIMING.upload_limit_ratio) == (60.0, 10.0)
    assert spool.RAW_SHARE == 0.75
