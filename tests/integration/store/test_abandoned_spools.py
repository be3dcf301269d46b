"""A spool of a killed process arrives once, whole and in order, in whatever process sends it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from stores.faulty_stores import spools
from stores.slow_spools import LABEL, Remote, open_spool, remote, segment, tensors
from watchglass.errors import RunExistsError, StoreError
from watchglass.store import (
    LocalStore,
    locked_files,
    send_abandoned,
    spool_exists,
)

__all__ = ["open_spool", "remote", "spools"]


WRITE = """
import sys
from watchglass.config import TIMING, Timing
from watchglass.errors import StoreError
from watchglass.store import LocalStore, Spool, layout

class Unreachable(LocalStore):
    appends = False
    def write(self, *args, **named):
        raise StoreError("unreachable")

label = {"run": "r", "attempt": 0, "worker": "worker_0"}
one = Spool(Unreachable(sys.argv[1]), "worker_0", label, most_bytes=1 << 20, memory_bytes=0, reserve_bytes=0)
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


@pytest.mark.parametrize("when", ["during", "after"])
def test_a_folder_that_is_removed_meanwhile_leaves_nothing_open(remote: Remote, left: str, when: str) -> None:
    """Folders for temporary files are cleaned up by the system, too."""
    opened = len(os.listdir("/proc/self/fd"))

    def sent(path: str) -> None:
        if when == "during" or not list(Path(left).glob("*~*")):
            shutil.rmtree(left)

    if when == "during":
        with pytest.raises(StoreError, match="cannot be read"):
            send_abandoned(remote, left, LABEL, sent)
    else:
        assert send_abandoned(remote, left, LABEL, sent) > 1
    assert send_abandoned(remote, left, LABEL) == 0
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_store_that_becomes_unreachable_again_gets_the_rest_another_time(remote: Remote, left: str) -> None:
    def enough(path: str) -> None:
        remote.unreachable = path == segment(2)

    with pytest.raises(StoreError, match="unreachable"):
        send_abandoned(remote, left, LABEL, enough)
    assert spool_exists(left)
    assert len(remote.written) == 5
    remote.unreachable = False
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


def test_a_spool_that_is_not_claimed_is_forgotten_after_a_week_unless_its_writer_lives(
    remote: Remote, left: str, open_spool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    remote.unreachable = True
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
