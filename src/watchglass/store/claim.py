"""Ownership of a worker's files or of the journal: exclusively created claims that identify a process.

A lock would be inherited by forked children and outlive its owner. A claim identifies a process by host, boot and start
time, so that any process can check whether the owner lives. Claims are never changed or deleted: the next owner
creates the next generation (``worker_0.json``, ``worker_0.json.1``, ...), and exclusive creation decides races.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from watchglass.errors import DamagedDataError, MissingFileError, RunExistsError
from watchglass.records import FAULTS, record_from_json
from watchglass.store import layout
from watchglass.store.contract import Store, StoredObject
from watchglass.store.json_documents import MAX_BYTES, read_small
from watchglass.store.spool.folder import is_given_up


@dataclass(frozen=True)
class Claim:
    """A process, identified beyond doubt."""

    pid: int  #: Its process id.
    #: Its start time in clock ticks since boot (field 22 of ``/proc/<pid>/stat``); 0 where unknown.
    process_start: int = 0
    boot_id: str = ""  #: Identifies the boot of its machine; "" where unknown.
    host: str = ""  #: Name of its machine.
    wall_ns: int = 0  #: When the claim was made, nanoseconds since 1970.
    released: bool = False  #: True in the generation that an owner adds when it is done.
    rings: tuple[str, ...] = ()  #: Files with the last records of the owner, see :mod:`watchglass.store.rings.ring`.
    harvest: bool = False  #: It only writes the records that a dead owner left behind.
    #: Folder of objects that are not in the store yet, see :mod:`watchglass.store.spool.spool`; "" for none.
    spool: str = ""

    def to_json(self) -> dict[str, Any]:
        """This claim as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Claim:
        """The claim in ``data``, whose other keys are ignored (a lifecycle record will do).

        Raises:
            DamagedDataError: There is none.
        """
        try:
            return record_from_json(cls, dict(data))
        except FAULTS as error:
            raise DamagedDataError(f"a claim must name a process but is {ascii(data)[:120]}") from error


def this_process() -> Claim:
    """A claim for the calling process."""
    pid = os.getpid()
    return Claim(pid, _process_start(pid) or 0, _boot_id(), platform.node(), time.time_ns())


def is_alive(claim: Claim | Mapping[str, Any]) -> bool | None:
    """Whether the process of a claim (or of a lifecycle record) runs; None where it is on another machine.

    A zombie counts as dead: it writes nothing. So does a process that released the claim, or that ended its run and
    left its spool to other processes.
    """
    if not isinstance(claim, Claim):
        claim = Claim.from_json(claim)
    if claim.released:
        return False
    if claim.host != platform.node():
        return None
    if claim.pid <= 0 or (claim.boot_id and claim.boot_id != _boot_id()):
        return False
    if is_given_up(claim.spool):
        return False
    start = _process_start(claim.pid)
    if start is not None:
        return start > 0 and claim.process_start in (0, start)
    if Path("/proc/self/stat").exists():
        return False
    try:
        os.kill(claim.pid, 0)  # no /proc on this system: a reused process id looks the same
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def claim_worker(store: Store, attempt: int, worker: str, start_info: Claim | None = None) -> int:
    """Make a process (the calling one, unless ``start_info`` names another) the writer of a worker's files.

    Returns:
        The number of earlier claims: 0 where no process has written these files yet.

    Raises:
        RunExistsError: A living process holds it, or one that may live on another machine.
    """
    what = f"{worker} of {store.location}"
    return take(store, layout.worker_claim(attempt, worker), start_info or this_process(), what)


def release_worker(store: Store, attempt: int, worker: str) -> None:
    """Release a worker, so that any process may claim it, this one too."""
    release(store, layout.worker_claim(attempt, worker))


def claims_of_worker(store: Store, attempt: int, worker: str) -> list[Claim]:
    """All claims of one worker, oldest first: a read for each, and one more.

    Raises:
        DamagedDataError: One of them is none.
    """
    return _generations(store, layout.worker_claim(attempt, worker))


def claims_of_workers(store: Store, attempt: int) -> dict[str, list[Claim]]:
    """All claims of each worker of an attempt, oldest first, in order of rank; none where one is unreadable."""
    paths = paths_of_claims(store.list(layout.workers(attempt)))
    known = _readable(store, [path for found in paths.values() for path in found])
    return {
        worker: [known[path] for path in found] if all(path in known for path in found) else []
        for worker, found in paths.items()
    }


def claimed_workers(store: Store, attempt: int) -> list[str]:
    """Names of the workers of an attempt, in order of rank; one listing, no claim is read."""
    return list(paths_of_claims(store.list(layout.workers(attempt))))


def read_claims(store: Store, attempt: int) -> dict[str, Claim]:
    """The newest claim of each worker of an attempt, in order of rank; unreadable ones are omitted.

    One listing, and a read for each worker.
    """
    paths = paths_of_claims(store.list(layout.workers(attempt)))
    known = _readable(store, [found[-1] for found in paths.values()])
    return {worker: known[found[-1]] for worker, found in paths.items() if found[-1] in known}


def is_untouched(store: Store, attempt: int, worker: str) -> bool:
    """Whether ``worker`` is free and no worker has left the attempt yet, so that its launch continues.

    One listing; claims are read only of workers that had more than one.
    """
    paths = paths_of_claims(store.list(layout.workers(attempt)))
    later = [found[-1] for found in paths.values() if len(found) > 1]
    return worker not in paths and not any(claim.released for claim in _readable(store, later).values())


def lease_holder(store: Store) -> Claim | None:
    """The newest owner of the journal, living or dead; None where there was none or it released the journal."""
    return holder_of(store, layout.LEASE)


def take(store: Store, path: str, claim: Claim, what: str, gone: Claim | None = None) -> int:
    """Take the claims at ``path``; returns how many there were before.

    Args:
        store: The store of a run.
        path: Of the first claim.
        claim: The process that takes them.
        what: Their name in messages.
        gone: A holder on another machine that is known to be dead.

    Raises:
        RunExistsError: Another living process has them, or one that may live on another machine.
    """
    claims = _generations(store, path)
    number, holder = len(claims), claims[-1] if claims else None
    if holder == claim:
        return number - 1  # taken by an earlier call whose answer was lost
    if holder is not None and not holder.released and holder != gone:
        alive = is_alive(holder)
        if alive is None:
            raise RunExistsError(
                f"{what} is held by process {holder.pid} on {holder.host}; wait for it to end, "
                f"or remove {_generation(path, number - 1)} in {store.location} if that machine is gone"
            )
        if alive:
            raise RunExistsError(
                f"{what} is held by process {holder.pid}, which is running; wait for it to end or choose another run"
            )
    name, data = _generation(path, number), json.dumps(claim.to_json()).encode()
    try:
        store.write(name, data)
    except RunExistsError as error:
        # The claim is ours if only the answer was lost.
        if store.read_many([(name, 0, MAX_BYTES)]) != [data]:
            raise RunExistsError(f"{what} was just taken by another process; choose another run") from error
    return number


def release(store: Store, path: str) -> None:
    """Release the claims at ``path``."""
    claims = _generations(store, path)
    if claims and not claims[-1].released:
        data = json.dumps({**claims[-1].to_json(), "released": True, "wall_ns": time.time_ns()}).encode()
        store.write(_generation(path, len(claims)), data)


def holder_of(store: Store, path: str) -> Claim | None:
    """The newest owner of the claims at ``path``, living or dead; None where there was none or it released them."""
    claims = _generations(store, path)
    return None if not claims or claims[-1].released else claims[-1]


def paths_of_claims(entries: Sequence[StoredObject]) -> dict[str, list[str]]:
    """The paths of each worker's claims, oldest first and up to the first gap, in order of rank.

    Args:
        entries: What the folder of an attempt's claims holds.
    """
    found: dict[str, dict[int, str]] = {}
    for entry in entries:
        parsed = layout.parse_claim(entry.path)
        if parsed is not None:
            found.setdefault(parsed[1], {})[parsed[2]] = entry.path
    paths: dict[str, list[str]] = {}
    for worker in sorted(found, key=layout.worker_order):
        while (path := found[worker].get(len(paths.get(worker, ())))) is not None:
            paths.setdefault(worker, []).append(path)
    return paths


def _generation(path: str, number: int) -> str:
    return path if number == 0 else f"{path}.{number}"


def _generations(store: Store, path: str) -> list[Claim]:
    claims: list[Claim] = []
    while True:
        name = _generation(path, len(claims))
        try:
            data = read_small(store, name)
        except MissingFileError:
            return claims
        claims.append(_decode(data, name))


def _decode(data: bytes, path: str) -> Claim:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedDataError(
            f"{path} is not a claim (it is not JSON); remove it once its process has ended"
        ) from error
    return Claim.from_json(value)


def _readable(store: Store, paths: Sequence[str]) -> dict[str, Claim]:
    """The claims at paths, by path; unreadable ones are omitted."""
    claims: dict[str, Claim] = {}
    for path, data in zip(paths, store.read_many([(path, 0, MAX_BYTES) for path in paths]), strict=True):
        with suppress(DamagedDataError):
            claims[path] = _decode(data or b"", path)
    return claims


def process_age_ns(claim: Claim) -> int | None:
    """Nanoseconds since the claiming process of this machine started, to a tick of 10 ms; None where unknown."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    if not claim.process_start or clock is None:
        return None
    return max(time.clock_gettime_ns(clock) - claim.process_start * 1_000_000_000 // os.sysconf("SC_CLK_TCK"), 0)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _process_start(pid: int) -> int | None:
    """Start time of a process in ticks since boot; 0 for a zombie, None where there is no such process or no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses, which may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    return 0 if fields[0] in ("Z", "X") else int(fields[19])
