"""Requests for a profiled window, of whoever looks at a run: committed at once, since no worker waits for another."""

from __future__ import annotations

import time
from contextlib import suppress

from watchglass.control.messages import Commit, ProfileWindow, decode_commit, encode
from watchglass.errors import DamagedDataError, InvalidValueError, MissingFileError, RunExistsError
from watchglass.store import Store, layout, read_small


def commit_window(store: Store, attempt: int, window: ProfileWindow, at_step: int) -> Commit:
    """The committed request; its number is the first free one.

    Args:
        store: The run's store.
        attempt: The attempt whose workers are asked.
        window: How many steps.
        at_step: The first TRAIN step. A worker that is past it begins with its next one.

    Raises:
        InvalidValueError: The steps overlap those of an earlier request.
        StoreError: The store refused.
    """
    wanted, number = range(at_step, at_step + window.steps), 0
    while True:
        path = layout.control_commit(window.kind, attempt, number)
        try:
            taken = _steps(store, path)
        except MissingFileError:
            commit = Commit(at_step, window, number)
            with suppress(RunExistsError):  # another request came first: its steps count too
                store.write(path, encode(commit, time.time_ns()))
                return commit
            continue
        if max(wanted.start, taken.start) < min(wanted.stop, taken.stop):
            raise InvalidValueError(
                f"steps {wanted.start}:{wanted.stop} overlap steps {taken.start}:{taken.stop}, which were requested "
                f"before; try again after step {taken.stop - 1}, or begin at step {taken.stop} or later"
            )
        number += 1


def _steps(store: Store, path: str) -> range:
    """The steps of an earlier request; none of one that cannot be read, which workers pass over as well."""
    try:
        commit = decode_commit(ProfileWindow, read_small(store, path))
    except DamagedDataError:
        return range(0)
    return range(commit.at_step, commit.at_step + getattr(commit.change, "steps", 0))
