"""Stores that can be unreachable, slow or forbidden while a run is written: a local folder, and a real S3 server."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servers.proxy import Proxy
from stores.buckets import waiting_for
from watchglass import Hook
from watchglass.capture.limits import CaptureLimits
from watchglass.config import Timing
from watchglass.errors import StoreError
from watchglass.records import SCALARS
from watchglass.store import (
    Content,
    FrameKind,
    LocalStore,
    Store,
    WrapperStore,
    decode_lifecycle,
    decode_rows,
    decode_step_ends,
    layout,
    open_store,
    read_claims,
    scan,
)
from watchglass.store.media.credentials import RequestPatience

#: The client of a bucket gives up after moments.
SOON = RequestPatience(connect_s=1.0, request_s=5.0, retry_s=0.05)


def impatient(location: str) -> Store:
    """The store of a location; of a bucket, one that gives up after moments."""
    return waiting_for(location, SOON) if location.startswith("s3://") else open_store(location)


class Faulty:
    """Where a test writes a run, and what can go wrong with it.

    Attributes:
        location: For ``Hook(run=...)``.
        appends: Whether that is a folder.
        threads: Names of the threads that asked the store for something, with how often.
        fault: Called before each operation with what it writes, if anything; may wait or raise.
    """

    def __init__(self, location: str, *, appends: bool) -> None:
        self.location = location
        self.appends = appends
        self.threads: Counter[str] = Counter()
        self.fault: Callable[[Content], None] = lambda data: None

    def open_store(self, location: str) -> Store:
        """The store, with these faults; for ``Hook(open_store=...)``."""
        assert location == self.location
        return ObservedStore(impatient(location), self)

    def cut(self) -> None:
        """The store is unreachable."""
        raise NotImplementedError

    def forbid(self) -> None:
        """The permission to use it is lost."""
        raise NotImplementedError

    def slow_down(self, bytes_per_s: float) -> None:
        """It takes so many bytes per second."""
        raise NotImplementedError

    def restore(self) -> None:
        """All is well again."""
        raise NotImplementedError

    def store(self) -> Store:
        """The store, past the faults where there is a way; for looking at what arrived."""
        raise NotImplementedError


class ObservedStore(WrapperStore):
    """A store that counts the threads that ask it, and has the faults of a test."""

    def __init__(self, inner: Store, faulty: Faulty) -> None:
        super().__init__(inner)
        self.root, self._faulty = inner.root, faulty

    def behind(self) -> Store:
        return self._asked(b"")

    def write(self, path: str, data: Content, *, replace: bool = False) -> None:
        self._asked(data).write(path, data, replace=replace)

    def append(self, path: str, data: bytes) -> None:
        self._asked(data).append(path, data)

    def close(self) -> None:
        self._inner.close()

    def _asked(self, data: Content) -> Store:
        self._faulty.threads[threading.current_thread().name] += 1
        self._faulty.fault(data)
        return self._inner


class FaultyFolder(Faulty):
    """A local folder whose every call fails, waits, or works: a network mount, say."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), appends=True)
        self._path = path

    def _refuse(self, data: Content) -> None:
        raise StoreError(f"cannot write {self.location}: the mount is gone; check the network")

    def cut(self) -> None:
        self.fault = self._refuse

    forbid = cut

    def slow_down(self, bytes_per_s: float) -> None:
        def wait(data: Content) -> None:
            parts = [data] if isinstance(data, bytes) else data
            time.sleep(sum(map(len, parts)) / bytes_per_s)

        self.fault = wait

    def restore(self) -> None:
        self.fault = lambda data: None

    def store(self) -> Store:
        return LocalStore(self._path)


class FaultyBucket(Faulty):
    """A prefix of a bucket of an S3 server, behind a proxy."""

    def __init__(self, location: str, proxy: Proxy) -> None:
        super().__init__(location, appends=False)
        self.proxy = proxy

    def cut(self) -> None:
        self.proxy.cut()

    def forbid(self) -> None:
        self.proxy.refuse(403, "AccessDenied")

    def slow_down(self, bytes_per_s: float) -> None:
        self.proxy.limit(bytes_per_s)

    def restore(self) -> None:
        self.proxy.restore()

    def store(self) -> Store:
        return open_store(self.location)


def quick(patience_s: float = 20.0) -> Timing:
    """Minutes become moments: pauses between tries, and how long an end may take without a store."""
    return Timing(open_pauses_s=(0.02, 0.1), upload_pauses_s=(0.02, 0.1), upload_patience_s=patience_s)


def train(hook: Hook, steps: range, *, size: int = 8, after: Callable[[int], None] = lambda step: None) -> list[float]:
    """Train by hand with a number and a tensor per step; returns the losses."""
    losses = []
    for number in steps:
        with hook.step("train"):
            losses.append(1.0 / (number + 1))
            hook.save_scalar("loss", losses[-1])
            hook.save_tensor("weight", np.arange(float(size)) + number)
        after(number)
    return losses


class Recorded:
    """What segments hold, read without any of the readers: every segment whole, numbers without gaps."""

    def __init__(self, store: Store, attempt: int = 0, worker: str = "worker_0") -> None:
        self.steps: list[int] = []
        self.losses: list[float] = []
        self.statistics = 0
        self.ends: list[dict[str, Any]] = []
        self.raw: list[str] = []
        names = [(layout.parse_segment(entry.path), entry.path) for entry in store.list(layout.segments(attempt))]
        own = sorted((name.seq, path) for name, path in names if name is not None and name.worker == worker)
        self.segments = [path for _, path in own]
        assert [seq for seq, _ in own] == list(range(len(own))), "a hole, or two of one number"
        for path in self.segments:
            found = scan(store.read(path))
            assert found.problem is None, (path, found.problem)
            assert found.frames[0].kind == FrameKind.HEADER
            for frame in found.frames:
                if frame.kind == FrameKind.STEP_ENDS:
                    self.steps += [end.global_step for end in decode_step_ends(frame.payload)]
                elif frame.kind == FrameKind.SCALARS:
                    rows = decode_rows(SCALARS, frame.payload)
                    self.losses += rows["value"][rows["tensor_id"] == rows["tensor_id"].min()].tolist()
                elif frame.kind == FrameKind.STATISTICS:
                    self.statistics += 1
                elif frame.kind == FrameKind.LIFECYCLE:
                    event = decode_lifecycle(frame.payload)
                    self.ends += [event] if event["event"] == "left" else []


def hook_of(faulty: Faulty, patience_s: float = 20.0, reserve_bytes: int = 0, **settings: Any) -> Hook:
    """A hook that captures every step and writes often."""
    settings = {"save_interval": 1, "flush_interval_s": 0.02, **settings}
    limits = CaptureLimits(timing=quick(patience_s), spool_reserve_bytes=reserve_bytes)
    return Hook(faulty.location, limits=limits, open_store=faulty.open_store, **settings)


def arrived(faulty: Faulty) -> bool:
    """Whether the worker has written its first steps. Those before are in no ring while it opens its store."""
    return bool(read_claims(faulty.store(), 0)) and bool(Recorded(faulty.store()).steps)


def child(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs this code; its last argument is the folder of the tests."""
    here = str(Path(__file__).resolve().parents[1])
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *arguments, here],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def spools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this machine keeps spools, of the test's own; also for processes that it starts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture(scope="session", params=["folder", "s3"])
def kind_of_store(request: pytest.FixtureRequest) -> str:
    """Which one; the server is started before anybody looks at what a test leaves behind."""
    kind: str = request.param
    if kind == "s3":
        request.getfixturevalue("s3_server")
    return kind


@pytest.fixture
def faulty(
    request: pytest.FixtureRequest,
    kind_of_store: str,
    tmp_path: Path,
    spools: Path,
) -> Iterator[Faulty]:
    """A folder, then a bucket."""
    if kind_of_store == "folder":
        yield FaultyFolder(tmp_path / "run")
        return
    location, proxy = request.getfixturevalue("s3_location"), request.getfixturevalue("s3_proxy")
    found = FaultyBucket(location, proxy)
    yield found
    found.restore()  # so that what is left there can be removed
