"""Which processes work on a run, as far as any machine can see with few requests.

A process is visible on its own machine only. Other machines see what it writes: workers write segments, launchers
report the end of their training process, and the writer of the journal renews its lease.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from watchglass.config import TIMING, Clock, Timing
from watchglass.errors import DamagedDataError, MissingFileError
from watchglass.records import Failure, Sighting
from watchglass.store import layout
from watchglass.store.claim import (
    Claim,
    claims_of_workers,
    is_alive,
    lease_holder,
    paths_of_claims,
    read_claims,
    this_process,
)
from watchglass.store.contract import Store
from watchglass.store.json_documents import MAX_BYTES, document
from watchglass.store.manifest import launcher_of


@dataclass(frozen=True)
class LaunchEnd:
    """The report of a launcher that its training process has ended."""

    rank: int  #: Its rank.
    world_size: int  #: Number of launchers; the end of a single one is the end of all workers.
    exit_status: int  #: Exit status of the training process, as a shell reports it.
    wall_ns: int  #: When, in nanoseconds since 1970.
    pid: int = 0  #: Process id of the training process, on the launcher's machine; 0 where unknown.
    failure: Failure | None = None  #: Why it ended, None where it ended well or that is unknown.
    #: What processes without a training step have seen of frameworks, None where that is unknown.
    sighting: Sighting | None = None


def write_launch_end(
    store: Store,
    attempt: int,
    *,
    rank: int,
    world_size: int,
    exit_status: int,
    pid: int = 0,
    failure: Failure | None = None,
    sighting: Sighting | None = None,
) -> None:
    """Report that the training process of a launcher has ended; replaces an earlier report of its rank.

    Raises:
        StoreError: The store refused.
    """
    if store.policy.cheap_lookups and store.size(layout.MANIFEST) is None:
        return  # the run was removed
    end = LaunchEnd(rank, world_size, exit_status, time.time_ns(), pid, failure, sighting)
    store.write(layout.launch_end(attempt, rank), json.dumps(asdict(end)).encode(), replace=True)


def read_launch_ends(store: Store, attempt: int) -> dict[int, LaunchEnd]:
    """The ends of the launches of an attempt, by rank; one listing, and a read for each.

    Raises:
        StoreError: The store refused.
    """
    paths = [entry.path for entry in store.list(layout.workers(attempt)) if layout.parse_launch_end(entry.path)]
    content = store.read_many([(path, 0, MAX_BYTES) for path in paths])
    return _launch_ends({path: document(data) for path, data in zip(paths, content, strict=True)})


def still_running(store: Store, attempt: int) -> Claim | None:
    """Another process of this machine that works on an attempt: one of its workers, or its launcher; else None.

    A launcher that only waits for its evaluator does not count.

    Raises:
        StoreError: The store refused.
    """
    ours = os.getpid()
    for claim in read_claims(store, attempt).values():
        if not claim.harvest and claim.pid != ours and is_alive(claim):
            return claim
    launcher = launcher_of(store, attempt)
    if launcher is None or launcher.pid == ours or not is_alive(launcher):
        return None
    return None if read_launch_ends(store, attempt) else launcher


class Attendance:
    """The claims of a run's workers and the ends of its launches. For one thread.

    A look is one listing per attempt; every claim is read once, since claims never change.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._objects: dict[str, dict[str, Any]] = {}
        self._claims: dict[int, dict[str, Claim]] = {}
        self._ends: dict[int, dict[int, LaunchEnd]] = {}

    def look(self, attempt: int) -> None:
        """Read what is new about an attempt.

        Raises:
            StoreError: The store refused; what was known before is still known.
        """
        entries = self._store.list(layout.workers(attempt))
        claims = {worker: found[-1] for worker, found in paths_of_claims(entries).items()}
        ends = [entry.path for entry in entries if layout.parse_launch_end(entry.path)]
        new = [path for path in (*claims.values(), *ends) if path not in self._objects]
        for path, data in zip(new, self._store.read_many([(path, 0, MAX_BYTES) for path in new]), strict=True):
            if data is not None:
                self._objects[path] = document(data)
        self._claims[attempt] = {}
        for worker, path in claims.items():
            with suppress(DamagedDataError):
                self._claims[attempt][worker] = Claim.from_json(self._objects.get(path, {}))
        self._ends[attempt] = _launch_ends({path: self._objects[path] for path in ends if path in self._objects})

    def claims(self, attempt: int) -> dict[str, Claim]:
        """The newest claim of each worker as of the last look, in order of rank; unreadable ones are omitted."""
        return self._claims.get(attempt, {})

    def launch_ended(self, attempt: int, worker: str | None = None) -> LaunchEnd | None:
        """The end of the launch of a worker, or of the single launcher of all; None where none was reported."""
        ends = self._ends.get(attempt, {})
        alone = ends.get(0)
        if alone is not None and alone.world_size <= 1:
            return alone
        return ends.get(layout.worker_order(worker)[0]) if worker is not None else alone


def claimed(store: Store, attempt: int) -> Iterator[tuple[str, list[Claim], bool]]:
    """Each worker of an attempt that has a claim, in order of rank: its name, its claims, whether its launch has ended.

    There are no claims where one cannot be read. An earlier launch, after which it was started again, does not count.
    """
    attendance = Attendance(store)
    attendance.look(attempt)
    for worker, claims in claims_of_workers(store, attempt).items():
        end = attendance.launch_ended(attempt, worker)
        yield worker, claims, end is not None and bool(claims) and end.wall_ns >= claims[-1].wall_ns


class Renewal:
    """Renews the lease of the journal, which shows that its holder lives. For one thread."""

    def __init__(self, store: Store, *, timing: Timing = TIMING, clock: Clock = time) -> None:
        self._store, self._clock = store, clock
        self._every_s = timing.lease_renewal_s
        self._next_s = float("-inf")
        self._number = 0
        self._process = this_process()

    def tick(self) -> bool:
        """Renew if it is time; returns whether it was.

        Raises:
            StoreError: The store refused; the next call retries.
        """
        now_s = self._clock.monotonic_ns() / 1e9
        if now_s < self._next_s:
            return False
        process = self._process
        data = {"pid": process.pid, "host": process.host, "number": self._number, "wall_ns": self._clock.time_ns()}
        self._store.write(layout.LEASE_RENEWED, json.dumps(data).encode(), replace=True)
        self._number += 1
        self._next_s = now_s + self._every_s
        return True


class LeaseWatch:
    """Watches the owner of the journal, by the local clock alone: that of another machine may be wrong.

    An owner on this machine is gone when its process is. One on another machine is gone once it no longer renews its
    lease.
    """

    def __init__(self, store: Store, clock: Clock = time, timing: Timing = TIMING) -> None:
        self._store, self._clock, self._expiry_s = store, clock, timing.lease_expiry_s
        self.holder: Claim | None = None  #: The owner at the last call of :meth:`holds`.
        self.elsewhere = False  #: Whether it is on another machine.
        self.gone: Claim | None = None  #: The owner, where it is on another machine and gone.
        self._seen, self._since_s = b"", 0.0

    def renewed(self) -> bool:
        """Whether the owner has renewed its lease since the last call of this or :meth:`holds`; one request."""
        if self.holder is None or (seen := self._read()) == self._seen:
            return False
        self._seen, self._since_s = seen, self._clock.monotonic()
        return True

    def holds(self) -> bool:
        """Whether there is an owner that may still write; call :meth:`renewed` before.

        Raises:
            StoreError: The store refused.
        """
        holder = lease_holder(self._store)
        if holder is not None and holder != self.holder:
            # The silence of a new owner begins now, however long the one before was silent.
            self._seen, self._since_s = self._read(), self._clock.monotonic()
        self.holder = holder
        alive = is_alive(holder) if holder is not None else False
        self.elsewhere = alive is None
        silent = self._clock.monotonic() - self._since_s >= self._expiry_s
        self.gone = holder if self.elsewhere and silent else None
        return alive is not False and self.gone is None

    def _read(self) -> bytes:
        try:
            return self._store.read(layout.LEASE_RENEWED, 0, MAX_BYTES)
        except MissingFileError:
            return b""


def _launch_ends(documents: Mapping[str, Mapping[str, Any]]) -> dict[int, LaunchEnd]:
    """The ends in documents, by rank; malformed ones are omitted."""
    ends = {}
    for path, said in documents.items():
        parsed = layout.parse_launch_end(path)
        size, status, wall_ns, pid = (said.get(name) for name in ("world_size", "exit_status", "wall_ns", "pid"))
        if parsed and isinstance(size, int) and isinstance(status, int) and isinstance(wall_ns, int):
            pid = pid if type(pid) is int else 0
            failure, sighting = Failure.from_json(said.get("failure")), Sighting.from_json(said.get("sighting"))
            ends[parsed[1]] = LaunchEnd(parsed[1], size, status, wall_ns, pid, failure, sighting)
    return ends
