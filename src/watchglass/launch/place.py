"""Where the run of a launch lies, and the one attempt that all ranks of it share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from watchglass.config import environment, joined
from watchglass.errors import LaunchError, RunExistsError
from watchglass.launch.job import Job
from watchglass.store import Store, create_attempt, create_run, layout, open_store, pace_of, read_manifest

#: How long ranks other than the first wait for it to make the run.
_WAIT_FOR_RANK_0_S = 60.0

#: A launcher launches once. Its start time would say the same, at the price of importing psutil.
_THIS_LAUNCH = os.urandom(8).hex()


def begin_attempt(job: Job, *, sleep: Callable[[float], None] = time.sleep) -> tuple[str, int]:
    """Make or join the run of ``job`` and an attempt in it: (location of the run, attempt).

    Rank 0 makes the run; the others wait for it. Ranks of one launch share the launch key, and so the attempt. A run
    that exists already and was named on purpose gets a new attempt; nothing in it is overwritten.

    Raises:
        NotARunError: The folder holds something else.
        StoreError: It cannot be written.
        LaunchError: Rank 0 made no run.
    """
    if environment.rank() == 0:
        run = _create(job)
    else:
        run = _shared_name(job)
        _wait_for_manifest(open_store(run), run, sleep)
    return run, create_attempt(open_store(run), launch_key())


def launch_key() -> str:
    """The same for all ranks of one launch, different for every other launch and for every restart by torchrun."""
    if not environment.elastic_run_id():
        return f"{os.uname().nodename}/{os.getpid()}/{_THIS_LAUNCH}"
    if _several_machines():
        return f"{environment.elastic_run_id()}/{environment.restart_count()}"
    parent = os.getppid()  # torchrun's agent, which started every rank of this machine
    return f"{os.uname().nodename}/{parent}/{_start_time(parent):.2f}/{environment.restart_count()}"


def _create(job: Job) -> str:
    """Location of a run that exists now: the one that was named, or a new one."""
    if job.run is not None or environment.elastic_run_id():
        run = job.run or _shared_name(job)
        store = open_store(run)
        try:
            create_run(store, command=job.words)
        except RunExistsError:
            read_manifest(store)
        return run
    name = _default_name(job, time.time())
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        try:
            create_run(open_store(name + suffix), command=job.words)
            return name + suffix
        except RunExistsError:  # another launch in the same second
            continue
    raise LaunchError(f"{name} and its numbered neighbours exist already; name the run with --run")


def _shared_name(job: Job) -> str:
    """The location that every rank comes to by itself."""
    if job.run is not None:
        return job.run
    if not environment.elastic_run_id() or _several_machines():
        raise LaunchError("ranks on several machines need one run that all of them see; name it with --run")
    return _default_name(job, _start_time(os.getppid()))


def _default_name(job: Job, wall_s: float) -> str:
    return joined(job.runs, f"{job.stem}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(wall_s))}")


def _several_machines() -> bool:
    return environment.world_size() > environment.local_world_size()


def _start_time(pid: int) -> float:
    """Wall time at which a process began, the same for everyone who asks."""
    import psutil  # only here, for the time it takes to import

    return float(psutil.Process(pid).create_time())


def _wait_for_manifest(store: Store, run: str, sleep: Callable[[float], None]) -> None:
    pause_s = 0.05 if store.appends else pace_of(store).poll_s
    for _ in range(int(_WAIT_FOR_RANK_0_S / pause_s)):
        if store.size(layout.MANIFEST) is not None:
            read_manifest(store)
            return
        sleep(pause_s)
    raise LaunchError(
        f"rank {environment.rank()} found no run in {run} after {_WAIT_FOR_RANK_0_S:.0f} s; "
        "rank 0 makes it, and all ranks must see the same place"
    )
