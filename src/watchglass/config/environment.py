"""The one reader of environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

#: ``WATCHGLASS=0`` switches everything off.
SWITCH = "WATCHGLASS"
#: JSON of a :class:`~watchglass.config.SessionConfig`: set by the launcher for the training and its children.
SESSION = "WATCHGLASS_SESSION"
#: ``1``: faults inside capture raise instead of detaching. For tests.
STRICT = "WATCHGLASS_STRICT"
#: Process id of the launcher, so that the training can follow it into death.
LAUNCHER = "WATCHGLASS_LAUNCHER"

_OFF = {"0", "false", "off", "no"}


def disabled(environ: Mapping[str, str] | None = None) -> bool:
    """Whether ``WATCHGLASS=0`` (or false, off, no) is set."""
    return (environ if environ is not None else os.environ).get(SWITCH, "1").strip().lower() in _OFF


def strict(environ: Mapping[str, str] | None = None) -> bool:
    """Whether faults inside capture should be raised."""
    return (environ if environ is not None else os.environ).get(STRICT, "") == "1"


def rank(environ: Mapping[str, str] | None = None) -> int:
    """Rank of this process as torchrun, Slurm or Open MPI set it; 0 when none did."""
    return _first_int(environ, ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"), 0)


def local_rank(environ: Mapping[str, str] | None = None) -> int:
    """Rank within this machine; 0 when nothing set it."""
    return _first_int(environ, ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"), 0)


def world_size(environ: Mapping[str, str] | None = None) -> int:
    """Number of ranks; 1 when nothing set it."""
    return _first_int(environ, ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"), 1)


def local_world_size(environ: Mapping[str, str] | None = None) -> int:
    """Number of ranks on this machine; 1 when nothing set it."""
    return _first_int(environ, ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"), 1)


def restart_count(environ: Mapping[str, str] | None = None) -> int:
    """How often torchrun has restarted this job; 0 when it did not."""
    return _first_int(environ, ("TORCHELASTIC_RESTART_COUNT",), 0)


def elastic_run_id(environ: Mapping[str, str] | None = None) -> str:
    """Identifier that torchrun gives all ranks of a job, "" when not under torchrun."""
    return (environ if environ is not None else os.environ).get("TORCHELASTIC_RUN_ID", "")


def _first_int(environ: Mapping[str, str] | None, names: tuple[str, ...], default: int) -> int:
    source = environ if environ is not None else os.environ
    for name in names:
        text = source.get(name, "").strip()
        if text.isdigit():
            return int(text)
    return default
