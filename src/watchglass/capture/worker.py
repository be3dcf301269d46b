"""What happens when a process becomes a worker: its place in the run is claimed and its files are opened.

All of it runs on the recorder's thread, at the first training step, so that it costs the training nothing.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from watchglass.config import SessionConfig, environment
from watchglass.errors import MissingFileError, NotARunError, RunExistsError, WatchglassError
from watchglass.record import harvest
from watchglass.store import (
    Claim,
    Manifest,
    RawTensor,
    Rings,
    SegmentWriter,
    Store,
    claim_worker,
    create_attempt,
    create_run,
    encode_lifecycle,
    layout,
    open_store,
    read_claims,
    read_manifest,
    release_worker,
    this_process,
    write_tensors,
)

_log = logging.getLogger("watchglass")

#: How long to wait for somebody who writes down what a dead predecessor recorded last.
_HARVEST_S = 20.0
_MOST_TRIES = 16


def open_worker(
    config: SessionConfig, rank: Callable[[], int], opened: Callable[[StopControl, int], None]
) -> WorkerWriter:
    """Claim this process's place in the run and open its segment.

    Args:
        config: Names the run; the run and the attempt are created if nobody has.
        rank: This process's rank.
        opened: Called with the stop control and the attempt once everything is in place.

    Raises:
        RunExistsError: Other processes of this rank take every attempt.
        StoreError: The run directory cannot be written.
    """
    store = open_store(config.run)
    manifest = _ensure_run(store)
    worker = layout.worker_name(rank())
    _harvest(store)
    attempt, writer = _take_place(store, config, manifest.run_id, worker)
    opened(StopControl(store, attempt, worker), attempt)
    return writer


def _take_place(store: Store, config: SessionConfig, run_id: str, worker: str) -> tuple[int, WorkerWriter]:
    """An attempt in which nobody has had this rank, and the worker's files there.

    So two trainings of one rank, one after another or at once, are two attempts.
    """
    given = config.attempt
    for tries in itertools.count(1):
        attempt = given if given is not None and worker not in read_claims(store, given) else _attempt(store, worker)
        try:
            label = {"run": run_id, "attempt": attempt, "worker": worker}
            return attempt, _open_writer(store, label, config.flight_recorder)
        except RunExistsError:
            # Another process of this rank was faster.
            if tries == _MOST_TRIES:
                raise
    raise AssertionError


def _attempt(store: Store, worker: str) -> int:
    """The attempt of this process's launch where nobody told it: the ranks that one process has started meet in it."""
    several_machines = environment.world_size() > environment.local_world_size()
    where = environment.rendezvous() if several_machines else f"{platform.node()}/{os.getppid()}"
    key = f"{environment.elastic_run_id()}/{environment.restart_count()}/{where}"

    def is_ours(attempt: int) -> bool:
        claims = read_claims(store, attempt)
        return worker not in claims and not any(claim.released for claim in claims.values())

    return create_attempt(store, key, is_ours)


def _open_writer(store: Store, label: dict[str, Any], flight_recorder: bool) -> WorkerWriter:
    attempt, worker = label["attempt"], label["worker"]
    rings = Rings(store, label) if flight_recorder else None
    process = replace(this_process(), rings=rings.names if rings is not None else ())
    try:
        _claim(store, attempt, worker, process)
        writer = WorkerWriter(store, attempt, worker, rings)
        joined = {"event": "joined", "worker": worker, "reason": "first training step", "time_ns": time.monotonic_ns()}
        writer.write([encode_lifecycle({**asdict(process), **joined, "wall_ns": time.time_ns()})])
    except BaseException:
        if rings is not None:
            rings.close(discard=True)
        raise
    return writer


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
    """Recover what workers of earlier attempts recorded last, before anything new is written."""
    try:
        harvest(store, by="next attempt")
    except WatchglassError as error:
        _log.warning("watchglass: the last steps of a killed worker are not recovered yet: %s", error)


def _claim(store: Store, attempt: int, worker: str, process: Claim) -> None:
    """Take the worker's place, after whoever writes down a dead predecessor's last steps."""
    patient_until = time.monotonic() + _HARVEST_S
    while True:
        try:
            claim_worker(store, attempt, worker, process)
            return
        except RunExistsError:
            holder = read_claims(store, attempt).get(worker)
            if holder is None or not holder.harvest or time.monotonic() > patient_until:
                raise
            time.sleep(0.05)


class WorkerWriter:
    """Segments and raw tensors of one worker. Used by the recorder's thread alone."""

    def __init__(self, store: Store, attempt: int, worker: str, rings: Rings | None = None) -> None:
        self.rings = rings
        self._store = store
        self._attempt = attempt
        self._worker = worker
        self._segments = SegmentWriter(store, attempt, worker)
        self._flushes = 0

    def write(self, frames: list[bytes]) -> None:
        """Append frames to the worker's segment."""
        self._segments.write(frames)

    def write_tensors(self, tensors: list[tuple[int, RawTensor]]) -> list[dict[str, Any]]:
        """Write ``(global_step, tensor)`` to one safetensors file; returns the index rows."""
        while True:
            self._flushes += 1
            try:
                return write_tensors(self._store, self._attempt, self._worker, self._flushes - 1, tensors)
            except RunExistsError:
                continue  # a dead process had this rank before us, and wrote some

    def close(self) -> None:
        """Give the worker's place back."""
        self._segments.close()
        release_worker(self._store, self._attempt, self._worker)


class StopControl:
    """The worker's side of the stop protocol, on the recorder's thread.

    Once a stop is requested it tells, again at every look, which TRAIN step this worker has seen, until the evaluator
    commits the step at which all workers stop.
    """

    def __init__(self, store: Store, attempt: int, worker: str) -> None:
        self._store = store
        self._request = layout.stop_request(attempt)
        self._seen = layout.stop_seen(attempt, worker)
        self._commit = layout.stop_commit(attempt)
        self._requested = False

    def poll(self, train_step: int) -> tuple[int, str] | None:
        """``(stop_at_step, reason)`` once committed, else None."""
        if not self._requested:
            if self._read(self._request) is None:
                return None
            self._requested = True
        seen = json.dumps({"train_step": train_step, "wall_ns": time.time_ns()})
        self._store.write(self._seen, seen.encode(), replace=True)
        commit = self._read(self._commit)
        return None if commit is None else (int(commit["stop_at_step"]), str(commit.get("reason", "")))

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            data: dict[str, Any] = json.loads(self._store.read(path))
        except MissingFileError:
            return None
        return data
