"""GPUs of AMD: what AMD SMI says, what it does not say, and which GPUs the run may use."""

from __future__ import annotations

import builtins
import gc
import importlib.metadata
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from amd_smi import UNKNOWN, FakeAmdSmi
from clocks import Now
from nvml import FakeNvml
from watchglass.profile import MetricSource, Sampler, SourceUnavailableError, open_sources, sources as all_sources
from watchglass.profile.sources import AmdProcessesSource, AmdSource, AmdStateSource, NvidiaSource, ProcessTree, amd
from watchglass.run import open_run
from watchglass.store import LocalStore, StreamWriter, create_attempt, create_run

pytestmark = pytest.mark.own_process

SECOND = 1_000_000_000


def read(source: MetricSource) -> dict[str, dict[str, float]]:
    """Numbers by metric and GPU; no entry for an unknown one."""
    return {
        reading.metric.name: {
            gpu: value for gpu, value in zip(reading.metric.instances, reading.values, strict=True) if value == value
        }
        for reading in source.read(0)
    }


def tree() -> ProcessTree:
    found = ProcessTree(os.getpid(), True)
    found.search()
    return found


def test_gpus_have_the_numbers_of_hip_and_the_metrics_of_nvidia() -> None:
    library = FakeAmdSmi()
    found = read(AmdSource(library, {})) | read(AmdStateSource(library, {}))
    assert found["gpu.utilization"] == {"0": 90, "1": 10}
    assert found["gpu.memory.utilization"] == {"0": 25, "1": 50}
    assert found["gpu.memory.used"] == {"0": 20 << 30, "1": 40 << 30}
    assert found["gpu.memory.limit"]["1"] == 80 << 30
    assert (found["gpu.power"]["0"], found["gpu.temperature"]["1"]) == (301, 61)
    assert (found["gpu.clock"]["0"], found["gpu.memory.clock"]["1"]) == (2100, 1300)
    assert (found["gpu.ecc.corrected"]["0"], found["gpu.ecc.uncorrected"]["0"]) == (7, 0)
    assert not {"gpu.throttle", "gpu.pcie.sent"} & set(found)


def test_before_rocm_6_4_gpus_have_their_places_in_the_library() -> None:
    library = FakeAmdSmi()
    library.missing = {"amdsmi_get_gpu_enumeration_info"}
    assert read(AmdSource(library, {}))["gpu.utilization"] == {"0": 10, "1": 90}
    library.missing, library.hip_ids = set(), [UNKNOWN, UNKNOWN]
    assert read(AmdSource(library, {}))["gpu.utilization"] == {"0": 10, "1": 90}


def test_keys_of_rocm_6_are_read() -> None:
    library = FakeAmdSmi()
    library.clock_key = "cur_clk"
    del library.power["socket_power"]
    assert read(AmdStateSource(library, {}))["gpu.clock"]["0"] == 2100
    assert read(AmdStateSource(library, {}))["gpu.power"]["0"] == 301
    library.power |= {"current_socket_power": 120, "average_socket_power": UNKNOWN}
    assert read(AmdStateSource(library, {}))["gpu.power"]["0"] == 120


def test_unknown_numbers_are_nan() -> None:
    library = FakeAmdSmi()
    library.use = [UNKNOWN, 0xFFFF]
    for key in ("socket_power", "current_socket_power", "average_socket_power"):
        library.power[key] = 0xFFFF if key == "current_socket_power" else UNKNOWN
    assert read(AmdSource(library, {}))["gpu.utilization"] == {}
    assert read(AmdStateSource(library, {}))["gpu.power"] == {}


def test_a_gpu_without_the_hottest_point_gives_the_edge() -> None:
    library = FakeAmdSmi()
    library.hotspot = 0xFFFF
    assert read(AmdStateSource(library, {}))["gpu.temperature"] == {"0": 48, "1": 48}


@pytest.mark.parametrize(
    ("environ", "chosen"),
    [
        ({}, ["0", "1"]),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, ["1"]),
        ({"ROCR_VISIBLE_DEVICES": "1"}, ["1"]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, ["1"]),
        ({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "0"}, ["1"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000b1"}, ["1"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-a123"}, ["0"]),
        ({"HIP_VISIBLE_DEVICES": "1,-1,0"}, ["1"]),
    ],
)
def test_only_visible_gpus_are_read(environ: Mapping[str, str], chosen: Sequence[str]) -> None:
    for source in (AmdSource(FakeAmdSmi(), environ), AmdStateSource(FakeAmdSmi(), environ)):
        assert [list(reading.metric.instances) for reading in source.read(0)] == [chosen] * len(source.read(0))


@pytest.mark.parametrize("hidden", ["", "-1", "7"])
def test_where_all_are_hidden_the_source_says_so(hidden: str) -> None:
    with pytest.raises(SourceUnavailableError, match="GPUs of AMD are not sampled: none is visible to the run"):
        AmdSource(FakeAmdSmi(), {"HIP_VISIBLE_DEVICES": hidden})


def test_a_call_that_fails_leaves_the_other_metrics_and_gpus() -> None:
    library = FakeAmdSmi()
    use, state = AmdSource(library, {}), AmdStateSource(library, {})
    library.lost = {0}
    library.denied, library.unsupported = {"amdsmi_get_gpu_ecc_count"}, {"amdsmi_get_power_info"}
    library.missing = {"amdsmi_get_temp_metric"}
    found = read(use) | read(state)
    assert found["gpu.utilization"] == {"0": 90}
    assert found["gpu.clock"] == {"0": 2100}
    for metric in ("gpu.ecc.corrected", "gpu.power", "gpu.temperature"):
        assert found[metric] == {}


def test_amd_smi_that_fails_is_an_error_of_the_reading_and_one_line_at_the_start() -> None:
    library = FakeAmdSmi()
    source = AmdSource(library, {})
    library.broken = library.AmdSmiLibraryException(34, "AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded")
    with pytest.raises(library.AmdSmiException, match="DRIVER_NOT_LOADED"):
        source.read(0)
    with pytest.raises(SourceUnavailableError) as refused:
        AmdSource(library, {})
    assert str(refused.value) == (
        "GPUs of AMD are not sampled: AMD SMI reports Error code: 34 | AMDSMI_STATUS_DRIVER_NOT_LOADED - "
        "Driver not loaded"
    )
    source.close()
    library.broken = None
    source.close()
    assert not library.open


def test_numbers_that_no_gpu_supports_are_no_failure() -> None:
    library = FakeAmdSmi()
    library.unsupported = {"amdsmi_get_gpu_process_list"}
    assert read(AmdProcessesSource(library, tree(), {})) == {"gpu.processes": {}}


def test_a_process_that_only_opened_a_gpu_does_not_count() -> None:
    library, own = FakeAmdSmi(), os.getpid()
    source = AmdProcessesSource(library, tree(), {})
    library.processes = [[(own, 0), (1, 1 << 30)], [(own, 1 << 30)]]
    assert read(source) == {"gpu.processes": {"0": 1, "1": 0}}
    library.processes = [[(1, 1 << 30)], []]
    assert read(source) == {"gpu.processes": {"0": 0, "1": 0}}
    library.processes = [[(own, 0)], [(own, 0)]]
    assert read(source) == {"gpu.processes": {}}, "the driver does not tell what a process holds"


def test_an_error_of_all_gpus_does_not_stay_in_memory() -> None:
    library = FakeAmdSmi()
    source = AmdSource(library, {})
    library.denied = {name for name in library.answers() if "_get_" in name}
    gc.collect()
    gc.disable()
    try:
        with suppress(library.AmdSmiException):
            source.read(0)
        assert not [each for each in gc.get_objects() if isinstance(each, library.AmdSmiException)]
    finally:
        gc.enable()


# The library


def machine(root: Path, *gpus: str, rocm: str = "", ships: bool = False) -> Path:
    """A file system with nodes of these ids (a processor has 0), and ROCm of a version."""
    (root / "dev").mkdir(parents=True)
    (root / "dev" / "kfd").touch()
    for place, gpu in enumerate(gpus):
        (root / "sys/class/kfd/kfd/topology/nodes" / str(place)).mkdir(parents=True)
        (root / "sys/class/kfd/kfd/topology/nodes" / str(place) / "gpu_id").write_text(f"{gpu}\n")
    if rocm:
        (root / "opt/rocm/.info").mkdir(parents=True)
        (root / "opt/rocm/.info/version").write_text(f"{rocm}-127\n")
    if ships:
        (root / "opt/rocm/share/amd_smi").mkdir(parents=True)
    return root


def importing(monkeypatch: pytest.MonkeyPatch, result: Any, version: str | None = None) -> None:
    """Let ``import amdsmi`` give a module, or raise, in an installation of a version."""

    def found(name: str, *arguments: Any, **more: Any) -> Any:
        if name != "amdsmi":
            return original(name, *arguments, **more)
        print("Unable to find libamd_smi.so library try installing amd-smi-lib from your package manager")
        if isinstance(result, Exception):
            raise result
        return result

    def version_of(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    original = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", found)
    monkeypatch.setattr(importlib.metadata, "version", version_of)


def refusal(root: Path) -> str:
    with pytest.raises(SourceUnavailableError) as refused:
        amd.amd_library({}, root)
    return str(refused.value)


def test_a_machine_without_gpus_of_amd_gives_no_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importing(monkeypatch, AssertionError("it is not imported"))
    assert refusal(tmp_path / "empty") == ""
    assert refusal(machine(tmp_path / "processor", "0")) == ""


def test_a_machine_with_gpus_but_without_the_library_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    importing(monkeypatch, ModuleNotFoundError("No module named 'amdsmi'", name="amdsmi"))
    root = machine(tmp_path, "0", "51545")
    assert refusal(root) == (
        'GPUs of AMD are not sampled: amdsmi is not installed; pip install "watchglass[amd]"'
    )  # fmt: skip
    shipped = machine(tmp_path / "shipped", "51545", rocm="7.1.0", ships=True)
    assert refusal(shipped).endswith(f"amdsmi is not installed; pip install {shipped}/opt/rocm/share/amd_smi")
    importing(monkeypatch, KeyError("libamd_smi.so"), "7.0.2")
    assert refusal(root) == (
        "GPUs of AMD are not sampled: amdsmi does not load libamd_smi.so of ROCm (KeyError: 'libamd_smi.so'); "
        'install amd-smi-lib of ROCm, and pip install "watchglass[amd]"'
    )
    for error in (OSError("invalid ELF header"), AttributeError("undefined symbol: amdsmi_get_link_metrics")):
        importing(monkeypatch, error, "7.0.2")
        assert f"({type(error).__name__}: {error}); " in refusal(root)
    assert capsys.readouterr().out == ""


def test_the_library_of_another_version_of_rocm_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its structures have other fields: it would read wrong numbers."""
    root = machine(tmp_path / "6.4", "1", rocm="6.4.3", ships=True)
    importing(monkeypatch, FakeAmdSmi(), "6.3.3")
    assert refusal(root) == (
        f"GPUs of AMD are not sampled: amdsmi is of ROCm 6.3, and {root}/opt/rocm is ROCm 6.4; "
        f"pip install {root}/opt/rocm/share/amd_smi"
    )
    alone = machine(tmp_path / "alone", "1", rocm="6.4.3")
    assert refusal(alone).endswith(f'{alone}/opt/rocm is ROCm 6.4; pip install "amdsmi==6.4.*"')
    for version in ("6.4.1", "25.5.1", None):  # the second is that of the package that ROCm ships
        importing(monkeypatch, library := FakeAmdSmi(), version)
        assert amd.amd_library({}, root) is library
    importing(monkeypatch, library, "6.3.3")
    assert amd.amd_library({"ROCM_PATH": str(tmp_path / "unknown")}, root) is library


@pytest.mark.skipif(shutil.which("rocm-smi") is not None, reason="this machine has ROCm")
def test_the_package_without_rocm_gives_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("ROCM_PATH", "ROCM_HOME"):
        monkeypatch.delenv(name, raising=False)
    reason = refusal(machine(tmp_path, "1"))
    assert reason.startswith("GPUs of AMD are not sampled: amdsmi ")
    assert "\n" not in reason
    assert capfd.readouterr().out == ""


# Beside other sources


def opened(monkeypatch: pytest.MonkeyPatch, nvidia: Any, of_amd: Any) -> tuple[list[MetricSource], dict[str, str]]:
    def library(found: Any) -> Any:
        if isinstance(found, str):
            raise SourceUnavailableError(found)
        return found

    monkeypatch.setattr(all_sources, "nvidia_library", lambda: library(nvidia))
    monkeypatch.setattr(all_sources, "amd_library", lambda environ: library(of_amd))
    sources, lacking = open_sources(os.getpid(), True, {})
    assert len(dict(lacking)) == len(lacking)
    return [source for source in sources if "GPUs" in source.name], dict(lacking)


def test_each_vendor_that_a_machine_has_is_sampled_and_only_what_lacks_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_amd = ["GPUs of AMD", "state of GPUs of AMD", "processes on GPUs of AMD"]
    found, lacking = opened(monkeypatch, "", "")
    assert (found, lacking) == ([], {"GPUs": "this machine has no GPUs"})
    found, lacking = opened(monkeypatch, "", FakeAmdSmi())
    assert ([source.name for source in found], lacking) == (of_amd, {})
    assert found[0].read(0)[0].metric.instances == ("0", "1")
    found, lacking = opened(monkeypatch, "", "GPUs of AMD are not sampled: because")
    assert (found, lacking) == ([], {"GPUs of AMD": "GPUs of AMD are not sampled: because"})
    found, lacking = opened(monkeypatch, FakeNvml(), FakeAmdSmi())
    assert ([source.name for source in found], lacking) == (["GPUs", "state of GPUs", *of_amd], {})
    assert [source.read(0)[0].metric.instances for source in found] == [("0", "1")] * 2 + [("AMD 0", "AMD 1")] * 3


def test_gpus_of_two_vendors_are_instances_of_one_metric(tmp_path: Path) -> None:
    now, store = Now(), LocalStore(tmp_path)
    create_run(store, command=["train.py"])
    create_attempt(store, "")
    of_amd = FakeAmdSmi()
    gpus = NvidiaSource(FakeNvml()), AmdSource(of_amd, {}, "AMD ")
    sampler = Sampler(gpus, StreamWriter(store, 0, "system", clock=now), 1.0, clock=now, cost_ns=lambda: 0)
    sampler.sample()
    of_amd.broken = of_amd.AmdSmiLibraryException(34, "Driver not loaded")
    now.advance(1)
    sampler.sample()
    of_amd.broken = None  # its traceback holds the frame of the test
    sampler.close()
    run = open_run(tmp_path)
    use, memory = run.samples("gpu.utilization"), run.samples("gpu.memory.used")
    assert use.instances == memory.instances == ("0", "1", "AMD 0", "AMD 1")
    assert use.values[0].tolist() == [90, 10, 90, 10]
    assert memory.values[0].tolist() == [20 << 30, 40 << 30, 20 << 30, 40 << 30]
    assert use.values[1, :2].tolist() == [90, 10]
    assert (use.values[1, 2:] != use.values[1, 2:]).all()
    assert run.table("notes").to_arrow()["message"].to_pylist() == [
        "AmdSmiLibraryException: Error code: 34 | Driver not loaded"
    ]
