"""What killed processes recorded last, brought into a run before it is looked at; and what of it is out of reach."""

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
from watchglass.store import Claim, is_alive, open_store, owners_of_rings


def recover(run: str) -> bool:
    """Bring into a run what the flight recorder holds of processes of this machine that are dead; said in a line.

    Never while they live, and never twice. Where the run cannot be written, a line says that the steps are still out.

    Args:
        run: Where the run is; what is no run, or one of a later release, is left to the caller's own error.

    Returns:
        Whether there was anything.
    """
    try:
        with closing(open_store(run)) as store:
            found = harvest(store, by="command line")
    except (FormatVersionError, MissingFileError, NotARunError):
        return False
    except (WatchglassError, OSError) as error:
        print_warning(f"{run}: the last steps of a killed process are not recovered: {error}")
        return False
    for each in found:
        what = count(each.steps, "step") if each.steps else count(each.objects, "object")
        print_note(f"{run}: recovered the last {what} of {each.worker}, whose process was killed")
    return bool(found)


def mention_unrecovered(path: str, run: Run) -> None:
    """Say where the flight recorder may hold more of the newest attempt than can be recovered here."""
    for place, workers in _unrecovered(run).items():
        who = workers[0] if len(workers) == 1 else f"{len(workers):,} workers"
        print_note(f"{path}: {who} did not end in order; {place}")


def _unrecovered(run: Run) -> dict[str, list[str]]:
    """Workers whose last steps may lie elsewhere, by what to do about it."""
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
            f"what it recorded last may still be on {claim.host}: once its process there is dead, watchglass check on "
            "that machine recovers it"
        )
    others = owners_of_rings(run.store, claim.rings) - {os.getuid()}
    if others and is_alive(claim) is False:
        return f"what it recorded last belongs to user {min(others)}, for whom watchglass check recovers it"
    return ""
