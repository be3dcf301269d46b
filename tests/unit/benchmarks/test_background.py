"""What happens beside the measured steps is counted, and what was there before is not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from background import Background, delete_oldest


def burn() -> None:
    for number in range(300_000):
        hash(str(number))


@contextmanager
def working_thread() -> Iterator[None]:
    """A thread that has worked and now waits."""
    worked, leave = threading.Event(), threading.Event()

    def work() -> None:
        burn()
        worked.set()
        leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    worked.wait()
    try:
        yield
    finally:
        leave.set()
        thread.join()


def test_counts_a_thread_that_was_started_since() -> None:
    background = Background()
    with working_thread():
        background.look()
        assert background() > 0


def test_keeps_what_a_thread_had_used_when_it_ends() -> None:
    background = Background()
    with working_thread():
        background.look()
        used = background()
    assert background() >= used > 0


def test_does_not_count_its_own_thread_nor_those_that_were_there() -> None:
    with working_thread():
        background = Background()
        burn()
        background.look()
        assert background() == 0


def test_counts_a_child_process_that_was_started_since() -> None:
    background = Background()
    source = "for number in range(300_000): hash(str(number))\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        background.look()
        used = background()
        child.communicate("\n")
    assert used > 0


def test_deletes_the_oldest_files_and_keeps_the_newest(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / "deep" / f"{number}.bulky"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, ns=(number, number))
    (tmp_path / "other").write_bytes(bytes(1000))
    delete_oldest(tmp_path, ["*.bulky"], kept_bytes=250)
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["2.bulky", "3.bulky"]
    delete_oldest(tmp_path, ["*.bulky"], kept_bytes=0)
    assert [path.name for path in tmp_path.rglob("*.*")] == ["3.bulky"]
    assert (tmp_path / "other").exists()
