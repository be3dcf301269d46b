"""Sources of system metrics: limits of containers, GPUs, processes of the run, known loads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from nvml import FakeNvml
from watchglass.profile import MetricSource, Rates, SourceUnavailableError, open_sources
from watchglass.profile.limits import CgroupLimits, read_limits
from watchglass.profile.sources import (
    MemorySource,
    NvidiaSource,
    NvidiaStateSource,
    ProcessesSource,
    ProcessorSource,
    ProcessTree,
)

SECOND = 1_000_000_000


def read(source: MetricSource, now_ns: int) -> dict[str, Any]:
    """Numbers by metric, and by instance where there are several."""
    return {
        reading.metric.name: dict(zip(reading.metric.instances, reading.values, strict=True))
        if reading.metric.instances
        else reading.values[0]
        for reading in source.read(now_ns)
    }


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_least_limit_of_all_levels_of_a_version_2_group_counts(tmp_path: Path) -> None:
    write(tmp_path / "proc/self", cgroup="0::/job/step\n")
    write(tmp_path / "cg/job", cpu__max="200000 100000\n", cpu__stat="usage_usec 5000000\n", memory__max="max\n")
    write(tmp_path / "cg/job/step", cpu__max="max 100000\n", cpu__stat="usage_usec 1\n", memory__max="1073741824\n")
    write(tmp_path / "cg/job/step", memory__current="600000000\n", memory__stat="inactive_file 100000000\nanon 5\n")
    limits = read_limits(tmp_path / "proc", tmp_path / "cg")
    assert (limits.cores, limits.memory_bytes) == (2.0, 1 << 30)
    assert (limits.cpu_seconds(), limits.memory_used_bytes()) == (5.0, 500_000_000)


def test_limits_of_version_1_count_and_its_largest_number_is_none(tmp_path: Path) -> None:
    write(tmp_path / "proc/self", cgroup="4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n")
    # In a container the group is mounted as the root.
    write(tmp_path / "cg/cpu", cpu__cfs_quota_us="150000\n", cpu__cfs_period_us="100000\n")
    write(tmp_path / "cg/cpuacct", cpuacct__usage="3000000000\n")
    write(tmp_path / "cg/memory", memory__limit_in_bytes="9223372036854771712\n")
    limits = read_limits(tmp_path / "proc", tmp_path / "cg")
    assert (limits.cores, limits.cpu_seconds(), limits.memory_bytes) == (1.5, 3.0, None)


def test_a_system_without_groups_has_no_limits(tmp_path: Path) -> None:
    assert read_limits(tmp_path, tmp_path / "none") == CgroupLimits()


def test_with_a_limit_of_one_core_all_of_it_is_100_percent(tmp_path: Path) -> None:
    usage = tmp_path / "cpuacct.usage"
    usage.write_text("0")
    source = ProcessorSource(CgroupLimits(cores=0.5, cpu_usage=usage))
    source.read(0)
    usage.write_text(str(SECOND // 2))
    found = read(source, 2 * SECOND)
    assert (found["cpu.utilization"], found["cpu.limit"]) == (pytest.approx(50), 0.5)
    assert list(found["cpu.core.utilization"]) == [str(core) for core in sorted(os.sched_getaffinity(0))]


def test_memory_under_a_limit_is_that_of_the_group(tmp_path: Path) -> None:
    write(tmp_path, memory__current="900", memory__stat="inactive_file 400\n")
    found = read(MemorySource(CgroupLimits(memory_bytes=1000, memory_folder=tmp_path)), 0)
    assert (found["memory.used"], found["memory.utilization"], found["memory.limit"]) == (500, 50, 1000)


def test_a_counter_that_was_set_back_gives_no_rate() -> None:
    rates = Rates()
    assert [rates.of("x", counter, n * SECOND) for n, counter in enumerate((5, 15, 3, 5))] == pytest.approx(
        [float("nan"), 10, float("nan"), 2], nan_ok=True
    )


def test_a_control_group_that_vanishes_is_an_error_of_its_sources(tmp_path: Path) -> None:
    """The sampler notes it and tries again; a limit that is unknown is not taken for none."""
    group = tmp_path / "job"
    write(group, cpuacct__usage="0", memory__current="900", memory__stat="inactive_file 400\n")
    limits = CgroupLimits(cores=0.5, cpu_usage=group / "cpuacct.usage", memory_bytes=1000, memory_folder=group)
    sources = ProcessorSource(limits), MemorySource(limits)
    for source in sources:
        source.read(0)
    moved = group.rename(tmp_path / "moved")
    for source in sources:
        with pytest.raises(OSError, match="No such file"):
            source.read(SECOND)
    moved.rename(group)
    assert read(sources[0], 2 * SECOND)["cpu.limit"] == 0.5
    assert read(sources[1], 2 * SECOND)["memory.limit"] == 1000


# GPUs


def test_gpus_are_read_by_number() -> None:
    library = FakeNvml()
    found = read(NvidiaSource(library), 0)
    assert found["gpu.utilization"] == {"0": 90, "1": 10}
    assert found["gpu.memory.utilization"] == {"0": 25, "1": 50}
    assert found["gpu.memory.used"]["1"] == 40 << 30


def test_only_visible_gpus_are_read() -> None:
    for visible in ("1", "GPU-b", "1,-1,0"):
        assert read(NvidiaSource(FakeNvml(), visible), 0)["gpu.utilization"] == {"1": 10}
    with pytest.raises(SourceUnavailableError, match="none is visible"):
        NvidiaSource(FakeNvml(), "")


def test_state_of_gpus_and_what_they_do_not_support() -> None:
    library = FakeNvml()
    library.unsupported = {"nvmlDeviceGetTotalEccErrors"}
    tree = ProcessTree(os.getpid(), True)
    tree.search()
    library.processes = [[os.getpid(), 1], []]
    source = NvidiaStateSource(library, tree)
    source.read(0)
    library.sent = [5000, 0]
    found = read(source, SECOND)
    assert (found["gpu.power"]["0"], found["gpu.temperature"]["0"], found["gpu.throttle"]["0"]) == (300.5, 61, 4)
    assert (found["gpu.clock"]["1"], found["gpu.memory.clock"]["1"]) == (1410, 1593)
    assert found["gpu.pcie.sent"] == {"0": 5000, "1": 0}
    assert found["gpu.processes"] == {"0": 1, "1": 0}
    assert found["gpu.ecc.corrected"] == pytest.approx({"0": float("nan"), "1": float("nan")}, nan_ok=True)
    assert found["gpu.pcie.received"]["0"] != found["gpu.pcie.received"]["0"], "an unknown number is NaN"


def test_nvml_that_fails_is_an_error_of_the_reading() -> None:
    library = FakeNvml()
    source = NvidiaSource(library)
    library.broken = library.NVMLError("GPU is lost")
    with pytest.raises(library.NVMLError, match="GPU is lost"):
        source.read(0)
    with pytest.raises(SourceUnavailableError, match="NVML reports GPU is lost"):
        NvidiaSource(library)


def test_a_gpu_that_is_lost_leaves_the_numbers_of_the_others() -> None:
    library = FakeNvml()
    source, state = NvidiaSource(library), NvidiaStateSource(library, None)
    library.lost = {1}
    found = read(source, 0) | read(state, 0)
    assert (found["gpu.utilization"]["0"], found["gpu.power"]["0"]) == (90, 300.5)
    for metric in ("gpu.utilization", "gpu.memory.used", "gpu.power", "gpu.temperature", "gpu.pcie.sent"):
        assert found[metric]["1"] != found[metric]["1"], "an unknown number is NaN"


def test_what_nvml_does_not_allow_leaves_the_other_metrics() -> None:
    """A container may ask for neither the processes on a GPU nor its memory errors."""
    library = FakeNvml()
    tree = ProcessTree(os.getpid(), True)
    source = NvidiaStateSource(library, tree)
    library.denied = {"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetTotalEccErrors"}
    found = read(source, 0)
    assert found["gpu.power"] == {"0": 300.5, "1": 300.5}
    assert all(number != number for number in found["gpu.processes"].values())
    library.broken = library.NVMLError("Driver Not Loaded")
    with pytest.raises(library.NVMLError, match="Driver Not Loaded"):
        source.read(SECOND)


def test_what_a_machine_lacks_is_said_once() -> None:
    sources, lacking = open_sources(os.getpid(), True, {"CUDA_VISIBLE_DEVICES": ""})
    for source in sources:
        source.close()
    assert {source.name for source in sources} >= {"processor", "memory", "processes"}
    assert [name for name, _ in lacking].count("GPUs") == 1
    assert all(reason for _, reason in lacking)


# Processes


def test_without_the_file_of_traffic_the_rest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: psutil.Process) -> None:
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(psutil.Process, "io_counters", denied)
    tree = ProcessTree(os.getpid(), True)
    tree.search()
    found = read(ProcessesSource(tree), 0)
    assert found["processes.memory"] > 1 << 20
    assert found["processes.read"] != found["processes.read"]
