"""The configuration of a sampler of system metrics."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from watchglass.config import environment
from watchglass.config.parameters import parameter, validate
from watchglass.config.process_config import ProcessConfig


@dataclass(frozen=True)
class SamplerConfig(ProcessConfig):
    """The configuration of a sampler process."""

    title: ClassVar[str] = "the sampler"
    module: ClassVar[str] = "watchglass.profile"
    gives: ClassVar[str] = "system metrics"
    unfinished: ClassVar[str] = ""  #: Said if it did not end in time; "" for nothing.
    speaks: ClassVar[bool] = False  # what it states is in the notes of its stream

    attempt: int  #: The attempt that the rows are about.
    root: int  #: Process whose descendants are the processes of the run.
    with_root: bool = parameter(False)  #: Whether it is itself a process of the run.
    stream: str = parameter("system")  #: Name of the stream that it writes.
    interval_s: float = parameter(0.5, ge=0.1, le=60)  #: Seconds between samples.
    replaces: str = parameter("")  #: How the sampler before this one ended; "" for the first one.

    def __post_init__(self) -> None:
        validate(self)

    @classmethod
    def here(
        cls, run: str, attempt: int, interval_s: float, *, of_script: bool, environ: Mapping[str, str] = os.environ
    ) -> SamplerConfig | None:
        """The configuration of the sampler that this process starts; None where another rank of the machine does.

        Args:
            run: Location of the run.
            attempt: The attempt.
            interval_s: Seconds between samples.
            of_script: Whether this process trains. Otherwise it is a launcher, whose child does.
            environ: The environment, which shows whether this process is a rank.
        """
        if environment.local_rank(environ) not in (None, 0):
            return None
        ranks = environment.local_world_size(environ)
        # The ranks of a machine have one parent: the agent of torchrun, or the daemon of Slurm or MPI.
        parent = os.getppid() if ranks > 1 else 1
        root, with_root = (os.getpid(), of_script) if parent <= 1 else (parent, False)
        node = environment.rank(environ) // max(ranks, 1)
        return cls(run, attempt, root, with_root, f"system_{node}" if node else "system", interval_s)

    @property
    def termination_s(self) -> float:
        """Seconds that the process has to end after a signal."""
        return 1.0
