"""A process becomes a worker: it claims its place in the run and opens its files.

All of it runs on the recorder's thread, at the first training step, so that it does not delay the training thread.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from watchglass.capture.limits import DEFAULT_LIMITS, CaptureLimits
from watchglass.capture.process.provenance import checked_out, script_folder, versions
from watchglass.config import SessionConfig, absolute, environment
from watchglass.control import Mailbox, open_mailbox
from watchglass.errors import MissingFileError, NotARunError, RunExistsError, StoreError, WatchglassError
from watchglass.record import harvest
from watchglass.store import (
    Claim,
    Manifest,
    RawTensor,
    Rings,
    SegmentWriter,
    Spool,
    Store,
    claim_worker,
    claims_of_worker,
    create_attempt,
    create_run,
    encode_lifecycle,
    is_alive,
    is_untouched,
    layout,
    open_store,
    process_age_ns,
    read_manifest,
    release_worker,
    this_process,
    write_tensors,
)

_log = logging.getLogger("watchglass")

_MOST_TRIES = 64
_MOST_FLUSHES = 10_000_000
#: Share of the flush interval of an object store that passes even before an urgent flush.
_URGENT_SHARE = 0.2


@dataclass
class _WorkerPlace:
    """A worker's place in an attempt, claimed or about to be."""

    attempt: int  #: The attempt.
    worker: str  #: The worker.
    rings: Rings | None  #: Of the flight recorder, or None.
    spool: Spool | None  #: Buffers the writes for a store that does not append, else None.
    #: Names this process and these files. Made once, so that a claim is known again whose writing failed only as far as
    #: this process knows.
    claim: Claim

    def discard(self) -> None:
        """Remove the files."""
        if self.rings is not None:
            self.rings.close(discard=True)
        if self.spool is not None:
            self.spool.close(0.0)


#: The process, once it has begun a run: the initialization of a further one, as in a notebook, is not as old as it.
_begun_in: list[int] = []


class WorkerOpening:
    """Opens the worker's files; a call that raises StoreError may be repeated and continues where it was.

    Args:
        config: Names the run; the run and the attempt are created where they do not exist.
        limits: Limits on waiting.
        rank: Returns this process's rank in its group, called once; None where it trains alone.
        opened: Called with the mailbox of control messages and the attempt once the files are open.
        open_store: Opens the store of a location.
    """

    def __init__(
        self,
        config: SessionConfig,
        limits: CaptureLimits,
        rank: Callable[[], int | None],
        opened: Callable[[Mailbox, int], None],
        open_store: Callable[[str], Store] = open_store,
    ) -> None:
        self._config = config
        self._open_store = open_store
        self._limits = limits
        # A script may change its working directory before its first step.
        self._location = absolute(config.run)
        # A group may end before the store can be reached.
        self._rank = functools.cache(rank)
        self._opened = opened
        self._store: Store | None = None
        self._harvested = False
        self._place: _WorkerPlace | None = None
        self._made_ns = time.monotonic_ns()

    @property
    def patience_s(self) -> float:
        """How long a worker that has ended retries: an object store comes back, a folder hardly does."""
        if self._store is None or not self._store.policy.buffers_writes:
            return 0.0
        return self._limits.timing.upload_patience_s

    def __call__(self) -> WorkerWriter:
        """Claim this process's place in the run and open its segment.

        Raises:
            RunExistsError: Other processes of this rank take every attempt.
            StoreError: The store is unreachable, or the run directory cannot be written.
        """
        rank = self._rank()
        store = self._store = self._store or self._open_store(self._location)
        manifest = _ensure_run(store)
        if not self._harvested:
            self._harvested = True
            _harvest(store)
        place, before = self._claimed(store, manifest.run_id, rank)
        worker = place.worker
        writer = WorkerWriter(
            store, place.attempt, worker, place.rings, place.spool,
            claims_before=before, raw_keep_bytes=self._config.raw_keep_bytes, closing_s=self._limits.closing_s,
        )  # fmt: skip
        joined = {
            "event": "joined", "worker": worker, "reason": "first training step", "time_ns": time.monotonic_ns(),
            "versions": versions(everything=not rank), "git": checked_out(script_folder()),
            "alone": rank is None, "age_ns": self._age_ns(place.claim),
        }  # fmt: skip
        writer.write([encode_lifecycle({**asdict(place.claim), **joined, "wall_ns": time.time_ns()})])
        _begun_in[:] = [os.getpid()]
        self._opened(open_mailbox(store, place.attempt, worker, environment.world_size()), place.attempt)
        return writer

    def _age_ns(self, claim: Claim) -> int | None:
        """Nanoseconds since the initialization began: with the process, or in a further run of it with the hook."""
        age_ns, since_ns = process_age_ns(claim), time.monotonic_ns() - self._made_ns
        return min(age_ns, since_ns) if age_ns is not None and _begun_in == [os.getpid()] else age_ns

    def abandon(self) -> None:
        """Give up: remove the files made so far."""
        if self._place is not None:
            self._place.discard()
            self._place = None
        if self._store is not None:
            self._store.close()

    def _claimed(self, store: Store, run_id: str, rank: int | None) -> tuple[_WorkerPlace, int]:
        """A place that no other process holds, and the number of earlier claims to it.

        Processes of one launch that are no ranks of a group are workers side by side. Two of one rank, one after
        another, are two attempts.
        """
        alone, worker = rank is None, layout.worker_name(rank or 0)
        given = self._config.attempt
        for tries in itertools.count(1):
            if self._place is None:
                name: str | None = worker
                if given is not None and alone:
                    name = _beside(store, given, ended=True)
                elif given is not None and claims_of_worker(store, given, worker):
                    name = None
                attempt = given
                if attempt is None or name is None:
                    attempt = _attempt(store, worker, alone=alone)
                    name = (_beside(store, attempt, ended=False) if alone else None) or worker
                self._place = self._made(store, {"run": run_id, "attempt": attempt, "worker": name})
            try:
                return self._place, _claim(store, self._place, self._limits.harvest_s)
            except RunExistsError:
                # Another process of this rank was faster.
                self._place.discard()
                self._place = None
                if tries == _MOST_TRIES:
                    raise
        raise AssertionError

    def _made(self, store: Store, label: dict[str, Any]) -> _WorkerPlace:
        worker, spool = label["worker"], None
        rings = Rings(store, label) if self._config.flight_recorder else None
        if store.policy.buffers_writes:
            spool = Spool(
                store, worker, label, most_bytes=self._config.spool_bytes, memory_bytes=self._config.queue_bytes,
                reserve_bytes=self._limits.spool_reserve_bytes, timing=self._limits.timing,
            )  # fmt: skip
        names, folder = rings.names if rings is not None else (), spool.folder if spool is not None else ""
        claim = replace(this_process(), rings=names, spool=folder)
        return _WorkerPlace(label["attempt"], worker, rings, spool, claim)


def _beside(store: Store, attempt: int, *, ended: bool) -> str | None:
    """The first free worker of an attempt, next to processes of the same launch that train separately.

    None where this process comes after one that died, and none of the others lives: then it is the next attempt.

    Args:
        store: A run.
        attempt: The attempt.
        ended: Whether processes that have ended in order were of the same launch.
    """
    lives = died = False
    for number in itertools.count():
        worker = layout.worker_name(number)
        claims = claims_of_worker(store, attempt, worker)
        if not claims:
            return worker if lives or not died else None
        last = claims[-1]
        mine = last.pid == os.getpid()  # of a training run before, in this very process
        lives |= bool(is_alive(last)) and not (last.harvest or mine)
        died |= mine or not (last.released and ended)
    raise AssertionError


def _attempt(store: Store, worker: str, *, alone: bool) -> int:
    """The attempt of this process's launch where none is given: processes that one process has started meet in it."""
    several_machines = environment.world_size() > environment.local_world_size()
    where = environment.rendezvous() if several_machines else f"{platform.node()}/{os.getppid()}"
    key = f"{environment.elastic_run_id()}/{environment.restart_count()}/{where}"
    return create_attempt(
        store,
        key,
        lambda attempt: (
            is_untouched(store, attempt, worker) or (alone and _beside(store, attempt, ended=False) is not None)
        ),
    )


def _ensure_run(store: Store) -> Manifest:
    try:
        return read_manifest(store)
    except (MissingFileError, NotARunError):
        try:
            return create_run(store, command=list(sys.argv))
        except RunExistsError:
            # Another rank was faster.
            return read_manifest(store)


def _harvest(store: Store) -> None:
    """Recover the last records of workers of earlier attempts, before anything new is written."""
    try:
        harvest(store, by="next attempt")
    except WatchglassError as error:
        _log.warning("watchglass: could not recover the last steps of a killed worker: %s", error)


def _claim(store: Store, place: _WorkerPlace, patience_s: float) -> int:
    """Take the worker's place, once a harvest of its dead predecessor is over; returns the number of earlier claims."""
    patient_until = time.monotonic() + patience_s
    while True:
        try:
            return claim_worker(store, place.attempt, place.worker, place.claim)
        except RunExistsError:
            claims = claims_of_worker(store, place.attempt, place.worker)
            if not claims or not claims[-1].harvest or time.monotonic() > patient_until:
                raise
            time.sleep(store.policy.lookup_s)


class WorkerWriter:
    """Segments and raw tensors of one worker. Used by the recorder's thread alone."""

    def __init__(
        self, store: Store, attempt: int, worker: str, rings: Rings | None = None, spool: Spool | None = None, *,
        claims_before: int = 0, raw_keep_bytes: int | None = None, closing_s: float = DEFAULT_LIMITS.closing_s,
    ) -> None:  # fmt: skip
        self.rings = rings  #: See :class:`~watchglass.record.frame_writer.FrameWriter`, also for the others.
        self._raw = None
        if raw_keep_bytes is not None:
            from watchglass.store import RawRetention  # here: its imports are large

            self._raw = RawRetention(store, attempt, worker, raw_keep_bytes)
        self._store = store
        self._spool = spool
        self._written_to = store if spool is None else spool
        self._attempt = attempt
        self._worker = worker
        self._segments = SegmentWriter(self._written_to, attempt, worker, first=claims_before == 0)
        # Files of tensors are not looked up: each earlier process of this rank has written fewer than that.
        self._flushes = claims_before * _MOST_FLUSHES
        self.flush_s = store.policy.intervals(environment.world_size()).flush_s
        self.urgent_s = _URGENT_SHARE * self.flush_s if store.policy.buffers_writes else 0.0
        self.patience_s, self.closing_s = (0.0, 0.0) if spool is None else (spool.patience_s, closing_s)
        if spool is not None and self._raw is not None:
            # Removal asks the store, which may be unreachable; and only files that have arrived can be removed.
            spool.arrived = self._retain

    def write(self, frames: list[bytes]) -> None:
        """Append frames to the worker's segment."""
        try:
            self._segments.write(frames)
        except RunExistsError:
            self.patience_s = 0.0  # another process writes it: the end of the training need not wait
            raise

    def write_tensors(self, tensors: list[tuple[int, RawTensor]]) -> list[dict[str, Any]]:
        """Write ``(global_step, tensor)`` to one safetensors file; returns the index rows."""
        while True:
            self._flushes += 1
            try:
                rows = write_tensors(self._written_to, self._attempt, self._worker, self._flushes - 1, tensors)
            except RunExistsError:
                if self._spool is not None:
                    raise
                continue  # a dead process had this rank before us, and wrote some
            if self._spool is None:
                self._retain(rows[0]["file"], sum(tensor.array.nbytes for _, tensor in tensors))
            return rows

    def _retain(self, path: str, size: int) -> None:
        """Remove the oldest raw tensors for a file that the store has now."""
        if self._raw is not None and layout.parse_tensors(path):
            with suppress(StoreError):  # then more is kept for now; the next file tries again
                self._raw.added(path, size)

    def close(self) -> bool:
        """Send buffered writes and release the worker's place; returns whether nothing waits in memory alone."""
        self._segments.close()
        if self._spool is None:
            release_worker(self._store, self._attempt, self._worker)
        else:
            self._spool.close()
            if not self._spool.waiting_bytes:
                with suppress(StoreError):  # a claim ends with its process anyway
                    release_worker(self._store, self._attempt, self._worker)
        self._store.close()
        return self._spool is None or not self._spool.memory_bytes
