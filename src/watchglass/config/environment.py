"""The one reader of environment variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from watchglass.errors import InvalidValueError

#: ``WATCHGLASS=0`` disables watchglass.
SWITCH = "WATCHGLASS"
#: JSON of a :class:`~watchglass.config.SessionConfig`: set by the launcher for the script and its children.
SESSION = "WATCHGLASS_SESSION"
#: Import names of frameworks with an adapter, those that it waits for before a "|": set by the launcher for the
#: bootstrap, which does not import the table.
FRAMEWORKS = "WATCHGLASS_FRAMEWORKS"
#: File in which processes of a launch report the exception that ended them: set by the launcher.
FAILURES = "WATCHGLASS_FAILURES"
#: Folder or prefix for runs without a location.
RUNS = "WATCHGLASS_RUNS"
#: ``1``: faults inside capture raise instead of detaching. For tests.
STRICT = "WATCHGLASS_STRICT"
#: ``0``: do not use the native kernel. For tests and comparisons.
NATIVE = "WATCHGLASS_NATIVE"


#: Path of a hook configuration file, as SageMaker Debugger names it.
HOOK_CONFIGURATION = "SMDEBUG_CONFIG_FILE_PATH"
#: Address of a Ray cluster, as Ray names it.
RAY = "RAY_ADDRESS"
#: Memory limit of a process for the runs that it reads, in bytes.
READ_MEMORY = "WATCHGLASS_READ_MEMORY"
#: Price of an hour of the whole run, in any currency; the verdict then reports the cost that a stop saved.
PRICE_PER_HOUR = "WATCHGLASS_PRICE_PER_HOUR"

#: Variables in the environment of evaluators and samplers, see for_companion.
_OF_COMPANIONS = {SWITCH: "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_LEAST_READ_MEMORY = 64 << 20
_WITHOUT_FOLDER = {"PYTHONSAFEPATH": "1"}
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_OFF = {"0", "false", "off", "no"}


def disabled() -> bool:
    """Whether ``WATCHGLASS=0`` (or false, off, no) is set."""
    return os.environ.get(SWITCH, "1").strip().lower() in _OFF


def strict() -> bool:
    """Whether faults inside capture should be raised."""
    return os.environ.get(STRICT, "") == "1"


def native_disabled() -> bool:
    """Whether the native kernel is disabled."""
    return os.environ.get(NATIVE, "") == "0"


def hook_configuration(environ: Mapping[str, str] = os.environ) -> str | None:
    """Path of SageMaker Debugger's hook configuration file; None if not set."""
    return environ.get(HOOK_CONFIGURATION) or None


def failures() -> str | None:
    """The file in which this process reports the exception that ends it; None without a launcher."""
    return os.environ.get(FAILURES, "").lstrip("+") or None


def runs() -> str | None:
    """Folder or prefix for runs without a location; None if not set."""
    return os.environ.get(RUNS) or None


def ray_address() -> str | None:
    """Address of the Ray cluster; None if not set."""
    return os.environ.get(RAY, "").strip() or None


def price_per_hour() -> str | None:
    """Price of an hour of the whole run, as written in the environment; None if not set."""
    return os.environ.get(PRICE_PER_HOUR, "").strip() or None


def is_rank(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun, Slurm or Open MPI started this process as a rank of a job."""
    return any(name in environ for name in _RANKS)


def read_memory_bytes(environ: Mapping[str, str] = os.environ) -> int | None:
    """Memory limit in bytes for the runs that are read; None if not set.

    Raises:
        InvalidValueError: The value is not a number of bytes.
    """
    text = environ.get(READ_MEMORY, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < _LEAST_READ_MEMORY:
        raise InvalidValueError(
            f"{READ_MEMORY} must be a number of bytes of at least {_LEAST_READ_MEMORY} but got {text!r}"
        )
    return int(text)


def rank(environ: Mapping[str, str] = os.environ) -> int:
    """Rank of this process as torchrun, Slurm or Open MPI set it; 0 when none did."""
    return _first_int(environ, _RANKS, 0)


def group_rank() -> int | None:
    """Rank of this process in its group; None for a process that trains alone."""
    return rank() if world_size() > 1 else None


def world_size(environ: Mapping[str, str] = os.environ) -> int:
    """Number of ranks; 1 when nothing set it."""
    return _first_int(environ, ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"), 1)


def local_world_size(environ: Mapping[str, str] = os.environ) -> int:
    """Number of ranks on this machine; 1 when nothing set it."""
    return _first_int(environ, ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"), 1)


def local_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Rank of this process among those of its machine; None when nothing set it."""
    found = _first_int(environ, ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"), -1)
    return found if found >= 0 and world_size(environ) > 1 else None


def restart_count(environ: Mapping[str, str] = os.environ) -> int:
    """Number of restarts of this job by torchrun; 0 without torchrun."""
    return _first_int(environ, ("TORCHELASTIC_RESTART_COUNT",), 0)


def rendezvous(environ: Mapping[str, str] = os.environ) -> str:
    """Where the ranks of a job meet, ``"host:port"``; ":" where nothing set it."""
    return f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}"


def elastic_run_id(environ: Mapping[str, str] = os.environ) -> str:
    """Identifier that torchrun gives all ranks of a job, "" when not under torchrun."""
    return environ.get("TORCHELASTIC_RUN_ID", "")


def job_id(environ: Mapping[str, str] = os.environ) -> str:
    """Identifier of a job whose ranks are started one by one; "" for a process that trains alone.

    For torchrun see :func:`elastic_run_id`. A batch script of Slurm has the variables of a rank and is none: a process
    that it starts without ``srun`` belongs to no step.
    """
    if world_size(environ) <= 1:
        return ""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return f"ranks/{rendezvous(environ)}"
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
    if "SLURM_PROCID" in environ:
        job = environ.get("SLURM_JOB_ID", environ.get("SLURM_JOBID", ""))
        return f"slurm/{job}.{step}/{environ.get('SLURM_RESTART_COUNT', '0')}" if job and step else ""
    names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")
    return next((f"mpi/{environ[name]}" for name in names if environ.get(name)), "")


def for_companion(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of an evaluator or sampler process, without capture and thread pools.

    A rule file may import a framework, which must not be watched there. Evaluation needs no thread pools: the cores
    belong to the run.
    """
    result = {name: value for name, value in environ.items() if name not in (SESSION, FRAMEWORKS, FAILURES)}
    result.update(_OF_COMPANIONS)
    if os.getcwd() not in sys.path:
        # Modules must be found as in this process: -m puts the working directory first, where a types.py or queue.py of
        # the user would replace that of the standard library. Python 3.11 and later know the variable.
        result.update(_WITHOUT_FOLDER)
    return result


def for_program(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program that an evaluator starts, without the variables of :func:`for_companion`.

    The program may be a training script, which needs thread pools and modules of its folder.
    """
    ours = _OF_COMPANIONS | _WITHOUT_FOLDER
    return {name: value for name, value in environ.items() if ours.get(name) != value}


def _first_int(environ: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        text = environ.get(name, "").strip()
        if text.isdigit():
            return int(text)
    return default
