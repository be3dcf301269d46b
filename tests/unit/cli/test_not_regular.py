"""A FIFO, a socket or a folder where a run has a file: an answer at once, and the healthy run beside it is read."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from command_line import Watchglass, training
from watchglass.testing import build_run

#: What is planted where; the claim and the journal are examined by name, segments and tensors by a listing.
PLACES = (
    "run.json", "attempts/0000/attempt.json", "attempts/0000/workers/worker_0.json",
    "attempts/0000/workers/worker_0.json.2", "attempts/0000/workers/launch-0", "attempts/0001/attempt.json",
    "journal/lease", "journal/lease.1", "journal/renewed", "journal/judged", "journal/00000000", "journal/00000001",
    "control/stop/0000/0000/request", "control/stop/0000/0000/commit",
    "compacted/00000002/manifest.json", "compacted/lease",
    "compacted/pins/" + "0" * 32 + ".json", "attempts/0000/.x.entries", "segment", "tensors", "attempts", "journal",
)  # fmt: skip
PLANTED = [
    *((place, "fifo") for place in PLACES),
    ("run.json", "socket"), ("attempts/0000/attempt.json", "folder"), ("journal/lease", "loop"), ("attempts", "loop"),
    ("segment", "folder"), ("control/stop/0000/0000/commit", "socket"),
]  # fmt: skip
SECONDS = 20


class Hanging(BaseException):
    """No exception that a command may catch."""


@contextmanager
def at_once() -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        raise Hanging(f"still busy after {SECONDS} s")

    known = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, known)


def plant(path: Path, kind: str) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    else:
        before = Path.cwd()
        os.chdir(path.parent)  # the name of a socket is short
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
        os.chdir(before)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "run"
    build_run(path, training(12), journal=[])
    return path


def place_in(run: Path, place: str) -> Path:
    if place == "segment":
        return next(path for path in sorted(run.rglob("segments/*/*")) if path.is_file())
    return run / place / "worker_0-00000000.safetensors" if place == "tensors" else run / place


@pytest.mark.parametrize(("place", "kind"), PLANTED)
def test_every_command_answers_at_once(
    tmp_path: Path, sound: Path, watchglass: Watchglass, place: str, kind: str
) -> None:
    for name in ("bad", "good"):
        shutil.copytree(sound, tmp_path / "runs" / name)
    plant(place_in(tmp_path / "runs/bad", place), kind)
    with at_once():
        for command in (("show", "{}"), ("check", "{}"), ("report", "{}", "-o", str(tmp_path / "r.html"), "--force"),
                        ("trace", "{}", "-o", str(tmp_path / "t.json"), "--force"),
                        ("compact", "{}"), ("export", "{}", "--to", "csv", "-o", str(tmp_path / "out"), "--force"),
                        ("rm", "{}", "--force")):  # fmt: skip
            said = watchglass(*(word.format(tmp_path / "runs/bad") for word in command))
            assert said.status in (0, 1, 2), said
            assert "not expected" not in said.err, said.err
            assert "Traceback" not in said.err


@pytest.mark.parametrize("kind", ["fifo", "loop", "folder"])
@pytest.mark.parametrize("verb", ["show", "check", "explain"])
def test_a_manifest_that_is_no_file_is_an_error_of_one_line(
    tmp_path: Path, watchglass: Watchglass, verb: str, kind: str
) -> None:
    plant(tmp_path / "bad/run.json", kind)
    said = watchglass(verb, tmp_path / "bad").error
    assert "run.json" in said or "holds no runs" in said


@pytest.mark.parametrize(
    ("place", "kind"),
    [("attempts/0000/attempt.json", "fifo"), ("journal/00000000", "fifo"), ("journal/judged", "folder")],
)
def test_following_ends_on_request(tmp_path: Path, sound: Path, watchglass: Watchglass, place: str, kind: str) -> None:
    """SIGTERM after a second, should the time that was given not be enough."""
    shutil.copytree(sound, tmp_path / "bad")
    plant(place_in(tmp_path / "bad", place), kind)
    alarm = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with at_once():
            alarm.start()
            said = watchglass("follow", tmp_path / "bad", "--wait", "0.3", "--timeout", "0.5", "-q")
            alarm.join()
        assert said.status in (0, 1, 2, 128 + signal.SIGTERM), said
        assert "not expected" not in said.err, said.err
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["run.json", "attempts/0000/attempt.json", "journal/lease", "journal/judged", "segment"]
)
def test_the_healthy_run_beside_it_is_followed_and_checked(
    tmp_path: Path, sound: Path, watchglass: Watchglass, place: str
) -> None:
    for name in ("bad", "good"):
        shutil.copytree(sound, tmp_path / "runs" / name)
    plant(place_in(tmp_path / "runs/bad", place), "fifo")
    with at_once():
        followed = watchglass("follow", tmp_path / "runs", "--wait", "0.5", "--until-idle", "0.5", "--timeout", "10")
        checked = watchglass("check", tmp_path / "runs")
    assert "good" in followed.out + followed.err
    assert "no issues found" in followed.out + followed.err
    assert "good" in checked.out
    assert "no issues found" in checked.out


def test_folders_of_any_depth_are_no_fault(tmp_path: Path, sound: Path, watchglass: Watchglass) -> None:
    """Deeper than Python recurses, and than a path may be long: what is so deep is no part of a run."""
    bad = tmp_path / "runs" / "bad"
    shutil.copytree(sound, bad)
    before = Path.cwd()
    os.chdir(bad / "attempts")
    for _ in range(1300):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(before)
    try:
        for command in (("check", bad), ("show", tmp_path / "runs"), ("rm", bad, "--yes")):
            said = watchglass(*command)
            assert said.status in (0, 2), said
            assert "not expected" not in said.err, said.err
    finally:
        remove_folders(bad / "attempts")  # pytest, too, would go down by recursion


def remove_folders(folder: Path) -> None:
    """Remove folders "d" of any depth below one."""
    before, depth = Path.cwd(), 0
    os.chdir(folder)
    while os.path.isdir("d"):
        os.chdir("d")
        depth += 1
    for _ in range(depth):
        os.chdir("..")
        os.rmdir("d")
    os.chdir(before)
