"""Checks that a training process may write to the run that it names, before anything is watched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from watchglass.config import SessionConfig, environment, local_path, scheme_of
from watchglass.errors import InvalidValueError, NotARunError, RunExistsError, WatchglassError
from watchglass.store import attempts, open_store, still_running


def check_destination(config: SessionConfig) -> None:
    """Refuse a location that is not a run, or a run that another process writes.

    An object store is not checked: nothing here waits for a network.

    Raises:
        InvalidValueError: No location is given.
        NotARunError: The location holds something else.
        RunExistsError: A training process of another launch writes there.
    """
    run = config.run
    if not run:
        raise InvalidValueError('run must name a folder to write to but got ""; for instance run="runs/mine"')
    if scheme_of(run):
        return
    path = Path(local_path(run))
    is_run = (path / "run.json").exists()
    if path.is_file() or (path.is_dir() and not is_run and any(path.iterdir())):
        raise NotARunError(f"{run} exists and is not a run: choose another run directory, nothing was written")
    if is_run and config.attempt is None and not environment.disabled() and not _belongs_to_others():
        _check_unused(run)


def _belongs_to_others() -> bool:
    """Whether this process is one of several that may share a run: a rank, or started by ``multiprocessing``."""
    if environment.world_size() > 1 or environment.elastic_run_id():
        return True
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


def _check_unused(run: str) -> None:
    try:
        store = open_store(run)
        known = attempts(store)
        writer = still_running(store, known[-1]) if known else None
    except WatchglassError:
        return  # the recorder's thread meets the same error and reports it
    if writer is not None and writer.pid != os.getppid():
        raise RunExistsError(
            f"{run} is being written by process {writer.pid}, which is running (attempt {known[-1]}); end it, or "
            "choose another run directory"
        )
