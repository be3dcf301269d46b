"""Rings of other processes: of living ones, killed ones and their children."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stores.faulty_stores import spools
from watchglass.errors import RunExistsError
from watchglass.store import LocalStore, Rings, read_rings, rings_exist
from watchglass.store.rings.ring import RowRing

__all__ = ["spools"]


LABEL = {"run": "r", "attempt": 0, "worker": "worker_0"}


@pytest.fixture
def store(tmp_path: Path, spools: Path) -> LocalStore:
    """A run with an attempt; the temporary folder lies below the test's."""
    (tmp_path / "run" / "attempts" / "0000").mkdir(parents=True)
    (tmp_path / "memory").mkdir()
    return LocalStore(tmp_path / "run")


def rings_of(store: LocalStore) -> Rings:
    """Rings whose memory lies beside the run."""
    return Rings(store, LABEL, store.root.parent / "memory")


HOLD = """
import sys
from pathlib import Path
from watchglass.store import LocalStore, Rings
rings = Rings(LocalStore(sys.argv[1]), {"run": "r", "attempt": 0, "worker": "worker_0"}, Path(sys.argv[2]))
print(*rings.names, *rings.refused, sep="\\n", flush=True)
sys.stdin.read()
"""


def test_the_rings_of_a_living_writer_are_not_read(store: LocalStore) -> None:
    command = [sys.executable, "-c", HOLD, str(store.root), str(store.root.parent / "memory")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        names = [process.stdout.readline().strip() for _ in range(2)]
        with pytest.raises(RunExistsError, match="is being written"):
            read_rings(store, names, LABEL)
        process.kill()
        process.wait()
    left = read_rings(store, names, LABEL)
    assert len(left.paths) == 2
    left.discard()


def test_a_child_of_the_writer_does_not_keep_its_rings(store: LocalStore) -> None:
    """A data worker outlives the training it was forked from, and inherits what is open there."""
    code = HOLD.replace(
        "sys.stdin.read()", "import os\nif os.fork() == 0: sys.stdin.read()\nelse: os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(store.root), str(store.root.parent / "memory")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        names = [process.stdout.readline().strip() for _ in range(2)]
        process.wait()
        left = read_rings(store, names, LABEL)
        assert len(left.paths) == 2
        left.discard()


def test_where_no_room_can_be_reserved_there_is_no_ring_and_no_bus_error(store: LocalStore) -> None:
    """A limit on the size of files stands in for a full disk: the system refuses, here with EFBIG instead of ENOSPC."""
    code = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n" + HOLD
    command = [sys.executable, "-c", code, str(store.root), str(store.root.parent / "memory")]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["rows", "entries"]
    assert "space cannot be reserved" in lines[0]
    assert store.list("attempts") == []
    assert list((store.root / "attempts/0000").iterdir()) == []


def test_rings_that_are_not_claimed_are_removed_after_a_week_unless_their_writer_lives(
    store: LocalStore, tmp_path: Path
) -> None:
    ours = rings_of(store)
    old = tmp_path / "memory" / f"watchglass-{os.getuid()}" / "worker_0-12-abc.rows"
    RowRing(old, LABEL).close(discard=False)
    long_ago = time.time() - 8 * 86400
    for path in (old, Path(ours.names[0])):
        os.utime(path, (long_ago, long_ago))
    command = [sys.executable, "-c", HOLD, str(store.root), str(tmp_path / "memory")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        living = Path(process.stdout.readline().strip())
        process.stdout.readline()
        assert not old.exists()
        os.utime(living, (long_ago, long_ago))
        rings_of(store).close(discard=True)
        assert living.exists()
        process.kill()
    rings_of(store).close(discard=True)
    assert not living.exists()
    assert rings_exist(store, ours.names[:1])
    ours.close(discard=True)
