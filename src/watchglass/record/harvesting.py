"""Harvest: upload the spool of a dead worker, and write the last steps that it recorded and never flushed.

Any process on the same machine may do it: the launcher, the evaluator, the next attempt. It takes the worker's claim
and writes as the worker would have done, so one process harvests at a time, and never while the writer lives. What the
segments hold already is omitted, so an interrupted harvest can be repeated.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from watchglass.errors import DamagedDataError, InvalidValueError, RunExistsError
from watchglass.record.flight_recorder import unpack
from watchglass.record.open_steps import OpenStep
from watchglass.record.steady_rows import recovered_row
from watchglass.record.step_encoding import encode_steps
from watchglass.record.unharvested import unharvested_claims
from watchglass.records import Encoding, Role, TensorInfo, of_steps
from watchglass.store import (
    Claim,
    Frame,
    FrameKind,
    LeftBehind,
    SegmentWriter,
    Store,
    abandoned_labels,
    attempts,
    claim_worker,
    claims_of_worker,
    claims_of_workers,
    decode_catalog,
    decode_header,
    decode_rows,
    decode_step_ends,
    encode_lifecycle,
    frames_of,
    layout,
    read_manifest,
    read_rings,
    release_worker,
    rings_held,
    send_abandoned,
    this_process,
)

_log = logging.getLogger("watchglass")


@dataclass(frozen=True)
class Harvest:
    """The recovered records of one worker."""

    attempt: int  #: Its attempt.
    worker: str  #: Its name.
    steps: int  #: Steps, of all modes, that its segments did not hold.
    objects: int = 0  #: Objects of its spool that were sent to the store.


def harvest(store: Store, *, by: str, attempt: int | None = None) -> list[Harvest]:
    """Recover the last records of dead workers, as far as their spools and rings are on this machine.

    Args:
        store: The store of a run.
        by: The caller, for the record: ``"launcher"``, ``"evaluator"``, ``"next attempt"``.
        attempt: Look at this attempt only; at all of them if None.

    Returns:
        One entry for each worker of which something was recovered.

    Raises:
        StoreError: The store refused. Nothing is lost, and the call may be repeated.
    """
    run_id = read_manifest(store).run_id
    found = []
    for number, worker, claims in _places(store, run_id, attempt):
        left = unharvested_claims(store, claims)
        label = {"run": run_id, "attempt": number, "worker": worker}
        if not left or any(rings_held(store, claim.rings, label) for claim in left):
            continue
        try:
            if not _is_ours(claims[-1]):
                claim_worker(store, number, worker, replace(this_process(), harvest=True))
        except RunExistsError:
            continue  # the worker lives after all, or another process harvests it
        try:
            # The rings hold the steps that no segment has, so all segments have to be in the store first.
            objects = sum(_sent(store, claim, label) for claim in left)
            steps = sum(_recover(store, claim, label, by) for claim in left)
        finally:
            release_worker(store, number, worker)
        if steps or objects:
            found.append(Harvest(number, worker, steps, objects))
    return found


def _places(store: Store, run_id: str, attempt: int | None) -> Iterable[tuple[int, str, list[Claim]]]:
    """Workers that may have left something, with their claims."""
    if attempt is None and not store.policy.cheap_lookups:
        # Each of many new workers does this, so only the claims of workers with files on this machine are read.
        for number, worker in sorted(_left_here(run_id)):
            with suppress(DamagedDataError):
                yield number, worker, claims_of_worker(store, number, worker)
        return
    for number in attempts(store) if attempt is None else [attempt]:
        for worker, claims in claims_of_workers(store, number).items():
            yield number, worker, claims


def _left_here(run_id: str) -> set[tuple[int, str]]:
    """Attempts and workers of a run whose writers are dead and left files on this machine."""
    found = set()
    for label in abandoned_labels():
        if isinstance(label, dict) and label.get("run") == run_id:
            number, worker = label.get("attempt"), label.get("worker")
            with suppress(InvalidValueError):
                if type(number) is int and number >= 0 and isinstance(worker, str):
                    found.add((number, layout.check_worker(worker)))
    return found


def recovered_steps(lifecycle: Iterable[Mapping[str, Any]]) -> int:
    """Number of steps of a worker that harvests have recovered, from its lifecycle events."""
    counts = (event.get("steps") for event in lifecycle if event.get("event") == "harvested")
    return sum(count for count in counts if type(count) is int and count > 0)


def _is_ours(claim: Claim) -> bool:
    """Whether this process holds the claim: an earlier harvest could not release it in an unreachable store."""
    return claim == replace(this_process(), wall_ns=claim.wall_ns, harvest=True)


def _sent(store: Store, claim: Claim, label: dict[str, Any]) -> int:
    """Send the objects in the spool of a claim; returns their number."""
    try:
        return send_abandoned(store, claim.spool, label) if claim.spool else 0
    except RunExistsError as error:
        _log.warning("watchglass: %s", error)
        return 0


def _recover(store: Store, claim: Claim, label: dict[str, Any], by: str) -> int:
    """Append the steps that are in the rings of a claim and not in the segments; returns their number."""
    try:
        left = read_rings(store, claim.rings, label)
    except RunExistsError:
        return 0  # its writer lives, although its claim is not visible from here
    steps, tensors = _recorded(left)
    attempt, worker = label["attempt"], label["worker"]
    if steps:
        written = _Written()
        written.read(store, attempt, worker, claim, min(max(step.start_ns, step.end_ns) for step in steps.values()))
        missing = [written.rest(step) for number, step in sorted(steps.items()) if number not in written.ended]
        if missing:
            used = {tensor_id for tensor_id in left.ids if tensor_id}
            tensors += _named(left.ids, written.lacks(store, used - {row.tensor_id for row in tensors}))
            new = [row for row in tensors if written.catalog.get(row.tensor_id) != row]
            frames = encode_steps(missing, new, lambda raw: [])
            frames.append(_event(worker, claim, missing, by))
            SegmentWriter(store, attempt, worker).write(frames)
        steps = {step.global_step: step for step in missing}
    left.discard()
    return len(steps)


def _event(worker: str, claim: Claim, steps: Sequence[OpenStep], by: str) -> bytes:
    return encode_lifecycle(
        {
            "event": "harvested", "worker": worker, "by": by, "pid": claim.pid, "steps": len(steps),
            "train_step": max(step.train_step for step in steps),
            "time_ns": time.monotonic_ns(), "wall_ns": time.time_ns(),
        }
    )  # fmt: skip


def _recorded(left: LeftBehind) -> tuple[dict[int, OpenStep], list[TensorInfo]]:
    """Steps by global step, as complete as the rings have them, and catalog rows in the order of writing."""
    steps = {step.global_step: step for step in (recovered_row(row, left.ids) for row in left.rows)}
    tensors: list[TensorInfo] = []
    for entry in left.entries:
        try:
            records = unpack(entry)
        except DamagedDataError:
            continue
        for record in records:
            if isinstance(record, TensorInfo):
                tensors.append(record)
            else:
                steps[record.global_step] = record
    return steps, tensors


def _named(ids: tuple[int, int], missing: set[int]) -> list[TensorInfo]:
    """Catalog rows of the numbers in rows whose worker died before it had written their names."""
    names = (("loss", Role.LOSS), ("learning_rate", Role.METRIC))
    return [
        TensorInfo(tensor_id, name, role, dtype="float64")
        for tensor_id, (name, role) in zip(ids, names, strict=True)
        if tensor_id in missing
    ]


#: Kinds of rows for which the segments count and not the rings. A second copy of a fact would count twice, and of the
#: others the ring of rows may hold fewer than the segments. Frames of statistics may be cut off within a step.
_REPEATED = {kind.number: kind for kind in of_steps() if kind.encoding is not Encoding.STATISTICS}


@dataclass
class _Written:
    """The content of the newest segments of a worker."""

    ended: set[int] = field(default_factory=set)  #: Global steps that are whole.
    #: Steps by kind of frame: a flush that was cut off leaves the first of a step's frames without its end.
    parts: dict[int, set[int]] = field(default_factory=lambda: {number: set() for number in _REPEATED})
    catalog: dict[int, TensorInfo] = field(default_factory=dict)  #: Newest rows.
    unread: list[str] = field(default_factory=list)  #: Paths of older segments, oldest first.

    def read(self, store: Store, attempt: int, worker: str, claim: Claim, since_ns: int) -> None:
        """Read back to the segment that was begun before ``since_ns``: what ended later is in none before it."""
        names = [(layout.parse_segment(entry.path), entry.path) for entry in store.list(layout.segments(attempt))]
        self.unread = [path for _, path in sorted((n.seq, path) for n, path in names if n and n.worker == worker)]
        while self.unread:
            header: dict[str, Any] = {}
            for frame in frames_of(store, self.unread.pop()):
                if frame.kind == FrameKind.HEADER:
                    header = decode_header(frame.payload)
                else:
                    self._add(frame)
            if header.get("boot_id") == claim.boot_id and header.get("monotonic_ns", since_ns) < since_ns:
                return

    def lacks(self, store: Store, ids: set[int]) -> set[int]:
        """Those of these tensors that no segment names; names are in the first segments, which are read then."""
        missing = ids - set(self.catalog)
        while missing and self.unread:
            for frame in frames_of(store, self.unread.pop(0)):
                if frame.kind == FrameKind.CATALOG:
                    with suppress(DamagedDataError):
                        missing -= {row.tensor_id for row in decode_catalog(frame.payload)}
        return missing

    def rest(self, step: OpenStep) -> OpenStep:
        """A step without the rows that were written already."""
        for number, kind in _REPEATED.items():
            if step.global_step in self.parts[number]:
                step.records.rows.pop(kind, None)
        return step

    def _add(self, frame: Frame) -> None:
        try:
            if frame.kind == FrameKind.STEP_ENDS:
                self.ended.update(end.global_step for end in decode_step_ends(frame.payload))
            elif frame.kind == FrameKind.CATALOG:
                # Newest segments come first.
                for row in decode_catalog(frame.payload):
                    self.catalog.setdefault(row.tensor_id, row)
            elif frame.kind in self.parts:
                rows = decode_rows(_REPEATED[frame.kind], frame.payload)
                self.parts[frame.kind].update(rows["global_step"].tolist())
        except DamagedDataError:
            return  # the reader reports it
