"""Proves that a process is the worker that a claim says it is, by a record lock and not by a file; signals it.

A run may come from anywhere, so the process id in a claim proves nothing: code that signals a process by its id, or
reads its stacks, asks here first. The kernel knows which process holds the record lock of a ring, and a ring is a file
of this user with the label of this worker.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from watchglass.config import open_regular
from watchglass.store import locked_files
from watchglass.store.claim import Claim, is_alive
from watchglass.store.contract import Store
from watchglass.store.rings.ring_paths import paths_of_rings

#: ``struct flock``: type, whence, start, length, pid; macOS and the BSDs have another order.
_LINUX = sys.platform.startswith("linux")
_FLOCK = struct.Struct("@hhqqi4x" if _LINUX else "@qqihh")


@contextmanager
def proof_of_worker(store: Store, claim: Claim, label: Mapping[str, Any]) -> Iterator[Callable[[], str]]:
    """A function that tells why the process of a claim is not proven to be the worker; "" while it is.

    The proof is the record lock of a ring that the claim names: that process must hold it. A process in another
    container or on another machine has no process id here and is never proven. Ids are reused, so what was read of a
    process counts only if the proof still holds afterwards.

    Args:
        store: The store of the run.
        claim: The claim of the worker.
        label: The label of the worker's rings.
    """
    if is_alive(claim) is not True:
        yield lambda: "it does not run on this machine"
        return
    if claim.pid == os.getpid():  # to close a ring of this process would end its record lock
        yield lambda: "it is this process"
        return
    descriptors = [found for path in paths_of_rings(store, claim.rings) if (found := _opened(path, label)) is not None]
    unproven = "no record lock proves that the process of its claim is the worker's"
    try:
        yield lambda: "" if claim.pid in map(_holder, descriptors) else unproven
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def signal_owner(store: Store, claim: Claim, label: Mapping[str, Any], number: int) -> str:
    """Send a signal to the process of a claim, if it is proven to be a worker.

    Args:
        store: The store of the run.
        claim: The claim of the worker.
        label: The label of the worker's rings.
        number: The signal.

    Returns:
        "" if the signal was sent, else the reason.
    """
    with proof_of_worker(store, claim, label) as unproven:
        reason = unproven()
        if reason:
            return reason
        try:
            if not hasattr(os, "pidfd_open"):
                os.kill(claim.pid, number)
                return ""
            process = os.pidfd_open(claim.pid)
            try:
                # Checked again: from here on the descriptor means this process, even if its number is reused.
                if unproven():
                    return "it has ended"
                signal.pidfd_send_signal(process, number)
            finally:
                os.close(process)
        except OSError as error:
            return f"the system refused: {error.strerror or error}"
    return ""


def _opened(path: Any, label: Mapping[str, Any]) -> int | None:
    """A descriptor of a ring of this user with this label that has one name only; None where it is none."""
    try:
        descriptor = open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with suppress(OSError):
        # A second name could belong to a file that another program has locked.
        if os.fstat(descriptor).st_nlink == 1 and locked_files.is_ring(descriptor, path.suffix[1:], label):
            return descriptor
    os.close(descriptor)
    return None


def _holder(descriptor: int) -> int:
    """The process that holds the record lock of a file; 0 for none, or for one without a process id here."""
    wanted = (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0) if _LINUX else (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
    found = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(*wanted)))
    kind, pid = (found[0], found[4]) if _LINUX else (found[3], found[2])
    return 0 if kind == fcntl.F_UNLCK else max(pid, 0)
