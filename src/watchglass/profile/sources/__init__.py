"""The sources of system metrics, one per file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from watchglass.profile.metrics import MetricSource, SourceUnavailableError
from watchglass.profile.sources.amd import (
    AmdProcessesSource as AmdProcessesSource,
    AmdSource as AmdSource,
    AmdStateSource as AmdStateSource,
    amd_library as amd_library,
)
from watchglass.profile.sources.disk import DiskSource as DiskSource
from watchglass.profile.sources.memory import MemorySource as MemorySource
from watchglass.profile.sources.network import NetworkSource as NetworkSource
from watchglass.profile.sources.nvidia import (
    NvidiaSource as NvidiaSource,
    NvidiaStateSource as NvidiaStateSource,
    nvidia_library as nvidia_library,
)
from watchglass.profile.sources.processes import (
    OpenFilesSource as OpenFilesSource,
    ProcessesSource as ProcessesSource,
    ProcessTree as ProcessTree,
    SearchSource as SearchSource,
)
from watchglass.profile.sources.processor import ProcessorSource as ProcessorSource

#: Sources of GPUs, one for each vendor.
_VENDORS = {"GPUs", "GPUs of AMD"}


def open_sources(
    root: int, with_root: bool, environ: Mapping[str, str] = os.environ
) -> tuple[Sequence[MetricSource], Sequence[tuple[str, str]]]:
    """All sources that this machine has, and (name, reason) of those that it lacks.

    Args:
        root: See :class:`ProcessTree`.
        with_root: See :class:`ProcessTree`.
        environ: The environment of the run, which may hide GPUs.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    tree = cache(partial(ProcessTree, root, with_root))
    sources: list[MetricSource] = []

    def prefix() -> str:
        """Tells the GPUs of AMD from those of NVIDIA, where the machine has both."""
        return "AMD " if any(isinstance(source, NvidiaSource) for source in sources) else ""

    makers: Mapping[str, Callable[[], MetricSource]] = {
        "processor": ProcessorSource,
        "memory": MemorySource,
        "disk": DiskSource,
        "network": NetworkSource,
        "search for processes": lambda: SearchSource(tree()),
        "processes": lambda: ProcessesSource(tree()),
        "open files": lambda: OpenFilesSource(tree()),
        "GPUs": lambda: NvidiaSource(nvidia_library(), visible),
        "state of GPUs": lambda: NvidiaStateSource(nvidia_library(), _or_none(tree), visible),
        "GPUs of AMD": lambda: AmdSource(amd_library(environ), environ, prefix()),
        "state of GPUs of AMD": lambda: AmdStateSource(amd_library(environ), environ, prefix()),
        "processes on GPUs of AMD": lambda: AmdProcessesSource(amd_library(environ), tree(), environ, prefix()),
    }
    lacking = []
    for name, make in makers.items():
        try:
            sources.append(make())
        except Exception as error:  # one source must not end the others
            # What else is asked of GPUs lacks for the same reason. A vendor of whom the machine has none is not named.
            if "GPUs" not in name:
                lacking.append((name, str(error) or f"this machine has no {name}"))
            elif name in _VENDORS and str(error):
                lacking.append((name, str(error)))
    if not {source.name for source in sources} & _VENDORS and not {name for name, _ in lacking} & _VENDORS:
        lacking.append(("GPUs", "this machine has no GPUs"))
    return sources, lacking


def _or_none(tree: Callable[[], ProcessTree]) -> ProcessTree | None:
    try:
        return tree()
    except SourceUnavailableError:
        return None
