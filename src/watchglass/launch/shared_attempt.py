"""The location of the run of a launch, and the attempt that all its ranks share."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping

from watchglass.config import TIMING, environment, joined
from watchglass.errors import LaunchError, RunExistsError
from watchglass.launch.job import Job
from watchglass.store import (
    Store,
    claims_of_worker,
    create_attempt,
    create_run,
    is_alive,
    launcher_of,
    layout,
    open_store,
    read_manifest,
    still_running,
    this_process,
)

#: Number of looks at a training process whose launcher is dead.
_DYING_LOOKS = 20

#: A launcher launches once. Its start time would be as good, but needs an import of psutil.
_THIS_LAUNCH = os.urandom(8).hex()


def begin_attempt(
    job: Job,
    *,
    environ: Mapping[str, str] = os.environ,
    report: Callable[[str], None] = lambda sentence: None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, int]:
    """Create or join the run of ``job`` and an attempt in it: (location of the run, attempt).

    Rank 0 creates the run; the others wait for it. Ranks of one launch share the launch key, and so the attempt. An
    existing run that the user named gets a new attempt; nothing in it is overwritten.

    Args:
        job: The job.
        environ: The environment, which shows whether this process is a rank.
        report: Takes a warning about processes on other machines.
        sleep: Sleeps for seconds.

    Raises:
        NotARunError: The folder has other content.
        StoreError: The store is not writable.
        LaunchError: Rank 0 created no run, or the previous attempt still runs.
    """
    rank = environment.rank(environ)
    if rank == 0:
        run = _create(job, environ)
    else:
        run = _shared_name(job, environ)
        _wait_for_manifest(open_store(run), run, rank, sleep)
    store = open_store(run)

    def follows(attempt: int) -> None:
        _check_over(store, run, attempt, report, sleep)

    joins = functools.partial(_is_joined, store, rank)
    return run, create_attempt(store, launch_key(environ), joins, follows=follows, launcher=this_process())


def launch_key(environ: Mapping[str, str] = os.environ) -> str:
    """The same for all ranks of one launch, different for every other launch and for every restart by torchrun."""
    if environment.elastic_run_id(environ):
        # The parent is torchrun's agent, which started every rank of this machine.
        launch = environment.elastic_run_id(environ) if _several_machines(environ) else _parent()
        return f"{launch}/{environment.restart_count(environ)}"
    job = environment.job_id(environ)
    if job:
        names_meeting = environment.rendezvous(environ) != ":" or not job.startswith("ranks/")
        return job if _several_machines(environ) and names_meeting else f"{job}/{_parent()}"
    return f"{os.uname().nodename}/{os.getpid()}/{_THIS_LAUNCH}"


def _parent() -> str:
    """A unique name of the parent process."""
    parent = os.getppid()
    return f"{os.uname().nodename}/{parent}/{_start_time(parent):.2f}"


def _is_joined(store: Store, rank: int, attempt: int) -> bool:
    """Whether a rank is new in an attempt with this launch key; an earlier launch with the key had the rank."""
    if store.size(layout.launch_end(attempt, rank)) is not None:
        return False
    return not claims_of_worker(store, attempt, layout.worker_name(rank))


def _check_over(
    store: Store, run: str, attempt: int, report: Callable[[str], None], sleep: Callable[[float], None]
) -> None:
    """Refuse an attempt while another one still runs, because the steps of both would mix.

    A training process ends shortly after its launcher was killed; wait for it.

    Raises:
        LaunchError: The other attempt still runs.
    """
    for wait in range(_DYING_LOOKS + 1):
        claim = still_running(store, attempt)
        if claim is None:
            break
        launcher = launcher_of(store, attempt)
        if wait == _DYING_LOOKS or launcher is None or is_alive(launcher) is not False:
            raise LaunchError(
                f"{run} is being written by process {claim.pid} (attempt {attempt}); wait for its end, or name "
                "another run with --run"
            )
        sleep(TIMING.dying_s / _DYING_LOOKS)
    launcher = launcher_of(store, attempt)
    if launcher is not None and is_alive(launcher) is None and store.size(layout.launch_end(attempt, 0)) is None:
        report(
            f"attempt {attempt} of {run} was launched on {launcher.host} and has recorded no end; if it still runs, "
            "its steps and those of this attempt will mix"
        )


def _create(job: Job, environ: Mapping[str, str]) -> str:
    """Create the run if necessary, and return its location: the one in the job, or a new one."""
    if job.run is not None or environment.elastic_run_id(environ):
        run = job.run or _shared_name(job, environ)
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
    raise LaunchError(f"{name} and its numbered variants exist already; name the run with --run")


def _shared_name(job: Job, environ: Mapping[str, str]) -> str:
    """The location, as every rank computes it."""
    if job.run is not None:
        return job.run
    if not environment.elastic_run_id(environ) or _several_machines(environ):
        raise LaunchError("ranks on several machines need one run that all of them can reach; name it with --run")
    return _default_name(job, _start_time(os.getppid()))


def _default_name(job: Job, wall_s: float) -> str:
    return joined(job.runs, f"{job.stem}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(wall_s))}")


def _several_machines(environ: Mapping[str, str]) -> bool:
    return environment.world_size(environ) > environment.local_world_size(environ)


def _start_time(pid: int) -> float:
    """Wall time of the start of a process, the same in every process that asks."""
    import psutil  # slow to import

    return float(psutil.Process(pid).create_time())


def _wait_for_manifest(store: Store, run: str, rank: int, sleep: Callable[[float], None]) -> None:
    pause_s = store.policy.lookup_s
    for _ in range(int(TIMING.first_rank_s / pause_s)):
        if store.size(layout.MANIFEST) is not None:
            read_manifest(store)
            return
        sleep(pause_s)
    raise LaunchError(
        f"rank {rank} found no run at {run} after {TIMING.first_rank_s:.0f} s; "
        "rank 0 creates it, and all ranks must reach the same location"
    )
