"""Every source of system metrics keeps its contract."""

from __future__ import annotations

import os

import pytest

from amd_smi import FakeAmdSmi
from nvml import FakeNvml
from watchglass.profile import MetricSource
from watchglass.profile.sources import (
    AmdProcessesSource,
    AmdSource,
    AmdStateSource,
    DiskSource,
    MemorySource,
    NetworkSource,
    NvidiaSource,
    NvidiaStateSource,
    OpenFilesSource,
    ProcessesSource,
    ProcessorSource,
    ProcessTree,
    SearchSource,
)
from watchglass.testing import SourceSuite


def tree() -> ProcessTree:
    found = ProcessTree(os.getpid(), True)
    found.search()
    return found


SOURCES = {
    "processor": ProcessorSource,
    "memory": MemorySource,
    "disk": DiskSource,
    "network": NetworkSource,
    "search": lambda: SearchSource(tree()),
    "processes": lambda: ProcessesSource(tree()),
    "open files": lambda: OpenFilesSource(tree()),
    "GPUs": lambda: NvidiaSource(FakeNvml()),
    "state of GPUs": lambda: NvidiaStateSource(FakeNvml(), tree()),
    "GPUs of AMD": lambda: AmdSource(FakeAmdSmi(), {}),
    "state of GPUs of AMD": lambda: AmdStateSource(FakeAmdSmi(), {}),
    "processes on GPUs of AMD": lambda: AmdProcessesSource(FakeAmdSmi(), tree(), {}),
}


class TestBuiltInSources(SourceSuite):
    @pytest.fixture(autouse=True, params=SOURCES)
    def chosen(self, request: pytest.FixtureRequest) -> None:
        self.make = SOURCES[request.param]

    def source(self) -> MetricSource:
        return self.make()
