"""The last steps of killed processes: recovered into the run before it is read, or reported as unrecoverable here."""

from __future__ import annotations

import os
import platform
from contextlib import closing
from typing import Any

from watchglass.cli.failure import print_note, print_warning
from watchglass.errors import FormatVersionError, MissingFileError, NotARunError, WatchglassError
from watchglass.record import harvest
from watchglass.records import count
from watchglass.run import Run
from watchglass.store import Claim, is_alive, open_store, owners_of_rings, read_manifest


def recover(run: str) -> bool:
    """Recover into a run the flight-recorder data of dead processes of this machine, and report it in a line.

    Never while the processes run, and never twice. If the run is not writable, a line reports it.

    Args:
        run: Location of the run. For a location that is no run the caller raises the error.

    Returns:
        Whether there were such data.
    """
    try:
        with closing(open_store(run)) as store:
            found = harvest(store, by="command line")
    except (FormatVersionError, MissingFileError, NotARunError):
        return False
    except (WatchglassError, OSError) as error:
        if _has_manifest(run):
            print_warning(f"{run}: could not recover the last steps of a killed process: {error}")
        return False
    for each in found:
        what = count(each.steps, "step") if each.steps else count(each.objects, "object")
        print_note(f"{run}: recovered the last {what} of {each.worker}, which was killed")
    return bool(found)


def _has_manifest(run: str) -> bool:
    try:
        with closing(open_store(run)) as store:
            read_manifest(store)
    except (WatchglassError, OSError):
        return False
    return True


def mention_unrecovered(path: str, run: Run) -> None:
    """Report where the flight recorder may hold steps of the newest attempt that cannot be recovered here."""
    for place, workers in _unrecovered(run).items():
        who = workers[0] if len(workers) == 1 else f"{len(workers):,} workers"
        print_note(f"{path}: {who} did not exit cleanly; {place}")


def _unrecovered(run: Run) -> dict[str, list[str]]:
    """Workers whose last steps may lie elsewhere, by the cure."""
    found: dict[str, list[str]] = {}
    for worker in run.workers:
        ended = False
        joined: dict[str, Any] = {}
        for event in run.worker(worker).lifecycle:
            if event.get("event") == "joined":
                joined, ended = event, False
            elif event.get("event") in ("left", "harvested"):
                ended = True
        place = "" if ended else _place(run, joined)
        if place:
            found.setdefault(place, []).append(worker)
    return found


def _place(run: Run, joined: dict[str, Any]) -> str:
    try:
        claim = Claim.from_json(joined)
    except WatchglassError:
        return ""
    if not claim.rings and not claim.spool:
        return ""
    if claim.host != platform.node():
        return (
            f"its last records may be on {claim.host}; to recover them, run watchglass check there after its process "
            "has ended"
        )
    others = owners_of_rings(run.store, claim.rings) - {os.getuid()}
    if others and is_alive(claim) is False:
        return f"its last records belong to user {min(others)}; that user can recover them with watchglass check"
    return ""
