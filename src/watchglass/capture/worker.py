"""What happens when a process becomes a worker: its place in the run is claimed and its files are opened.

All of it runs on the recorder's thread, at the first training step, so that it costs the training nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from watchglass.config import SessionConfig, environment
from watchglass.errors import MissingFileError, NotARunError, RunExistsError
from watchglass.store import (
    SegmentWriter,
    Store,
    claim_worker,
    create_attempt,
    create_run,
    encode_lifecycle,
    layout,
    open_store,
    read_manifest,
    release_worker,
    this_process,
    write_tensors,
)


def open_worker(
    config: SessionConfig, rank: Callable[[], int], opened: Callable[[StopControl, int], None]
) -> WorkerWriter:
    """Claim this process's place in the run and open its segment.

    Args:
        config: Names the run; the run and the attempt are created if nobody has.
        rank: This process's rank.
        opened: Called with the stop control and the attempt once everything is in place.

    Raises:
        RunExistsError: Another living process has this rank.
        StoreError: The run directory cannot be written.
    """
    store = open_store(config.run)
    _ensure_run(store)
    key = f"{environment.elastic_run_id()}:{environment.restart_count()}:{os.getpid()}:{time.monotonic_ns()}"
    attempt = config.attempt if config.attempt is not None else create_attempt(store, key)
    worker = layout.worker_name(rank())
    process = this_process()
    claim_worker(store, attempt, worker, process)
    writer = WorkerWriter(store, attempt, worker)
    joined = {"event": "joined", "worker": worker, "reason": "first training step", "time_ns": time.monotonic_ns()}
    writer.write([encode_lifecycle({**asdict(process), **joined, "wall_ns": time.time_ns()})])
    opened(StopControl(store, attempt, worker), attempt)
    return writer


def _ensure_run(store: Store) -> None:
    try:
        read_manifest(store)
    except (MissingFileError, NotARunError):
        try:
            create_run(store, command=list(sys.argv))
        except RunExistsError:
            # Another rank was faster.
            read_manifest(store)


class WorkerWriter:
    """Segments and raw tensors of one worker. Used by the recorder's thread alone."""

    def __init__(self, store: Store, attempt: int, worker: str) -> None:
        self._store = store
        self._attempt = attempt
        self._worker = worker
        self._segments = SegmentWriter(store, attempt, worker)
        self._flushes = 0

    def write(self, frames: list[bytes]) -> None:
        """Append frames to the worker's segment."""
        self._segments.write(frames)

    def write_tensors(self, tensors: list[tuple[int, int, Any]]) -> list[dict[str, Any]]:
        """Write ``(global_step, tensor_id, array)`` to one safetensors file; returns the index rows."""
        named = {f"{step}/{tensor_id}": array for step, tensor_id, array in tensors}
        path = self._write_next(named)
        return [
            {"global_step": step, "tensor_id": tensor_id, "file": path, "key": f"{step}/{tensor_id}"}
            for step, tensor_id, _ in tensors
        ]

    def _write_next(self, named: dict[str, Any]) -> str:
        while True:
            self._flushes += 1
            try:
                return write_tensors(self._store, self._attempt, self._worker, self._flushes - 1, named)
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
