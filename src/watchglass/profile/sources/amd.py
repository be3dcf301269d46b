"""GPUs of AMD, by AMD SMI, the library of ROCm.

PyTorch calls them ``cuda`` too, so the metrics have the names of NVIDIA's.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from watchglass.profile.metrics import MetricReading, MetricSource, SourceUnavailableError
from watchglass.profile.sources.gpus import Gpus, visible
from watchglass.profile.sources.processes import ProcessTree

_NAN = float("nan")
#: An unknown number is all ones in 16, 32 or 64 bits, or the text "N/A". Percent, watts, degrees and megahertz are
#: below the first, bytes and counts below the last.
_MOST_16, _MOST_64 = 0xFFFF - 1, 2**64 - 2
#: Versions of the package ``amdsmi`` from here on count as the library does, not as ROCm: those that come with ROCm.
_FIRST_OF_LIBRARY = 20


class AmdSource(MetricSource):
    """``gpu.utilization``, ``gpu.memory.utilization``, ``gpu.memory.used`` and ``gpu.memory.limit`` by GPU.

    ``gpu.utilization`` is the busy time of the engine for graphics and compute. ``gpu.memory.utilization`` is the used
    share of the memory of the card.

    Args:
        library: The module ``amdsmi``.
        environ: The environment of the run, which may hide GPUs.
        prefix: Before the numbers of the GPUs, where those of another vendor have numbers too.
    """

    name = "GPUs of AMD"

    def __init__(self, library: Any, environ: Mapping[str, str], prefix: str = "") -> None:
        self._library, self._gpus = library, _visible_gpus(library, environ, prefix)

    def read(self, now_ns: int) -> Sequence[MetricReading]:
        """See :meth:`MetricSource.read`."""
        smi = self._library

        def used(gpu: Any) -> float:
            return _number(smi.amdsmi_get_gpu_memory_usage(gpu, smi.AmdSmiMemoryType.VRAM), _MOST_64)

        def limit(gpu: Any) -> float:
            return _number(smi.amdsmi_get_gpu_memory_total(gpu, smi.AmdSmiMemoryType.VRAM), _MOST_64)

        return self._gpus.readings({
            "gpu.utilization": ("%", lambda gpu: _number(smi.amdsmi_get_gpu_activity(gpu)["gfx_activity"], 100)),
            "gpu.memory.utilization": ("%", lambda gpu: 100 * used(gpu) / (limit(gpu) or _NAN)),
            "gpu.memory.used": ("bytes", used),
            "gpu.memory.limit": ("bytes", limit),
        })  # fmt: skip

    def close(self) -> None:
        """End AMD SMI."""
        with suppress(Exception):
            self._library.amdsmi_shut_down()


class AmdStateSource(MetricSource):
    """Power, temperature, clocks and errors of memory, by GPU.

    ``gpu.power`` (W) is that of the socket. ``gpu.temperature`` (°C) is that of the hottest point, or of the edge where
    the GPU has no such sensor. ``gpu.clock`` and ``gpu.memory.clock`` are in MHz. ``gpu.ecc.corrected`` and
    ``gpu.ecc.uncorrected`` are the errors of the memory (block UMC) since the driver was loaded.

    AMD SMI tells neither the reasons for reduced clocks as bits nor a counter of the bytes in each direction of PCIe:
    ``amdsmi_get_gpu_pci_throughput`` blocks for a second.

    Args:
        library: The module ``amdsmi``.
        environ: See :class:`AmdSource`.
        prefix: See :class:`AmdSource`.
    """

    name = "state of GPUs of AMD"
    core_share = 0.001

    def __init__(self, library: Any, environ: Mapping[str, str], prefix: str = "") -> None:
        self._library, self._gpus = library, _visible_gpus(library, environ, prefix)

    def read(self, now_ns: int) -> Sequence[MetricReading]:
        """See :meth:`MetricSource.read`."""
        clocks = self._library.AmdSmiClkType
        return self._gpus.readings({
            "gpu.power": ("W", self._power),
            "gpu.temperature": ("°C", self._temperature),
            "gpu.clock": ("MHz", lambda gpu: self._clock(gpu, clocks.GFX)),
            "gpu.memory.clock": ("MHz", lambda gpu: self._clock(gpu, clocks.MEM)),
            "gpu.ecc.corrected": ("", lambda gpu: self._errors(gpu, "correctable_count")),
            "gpu.ecc.uncorrected": ("", lambda gpu: self._errors(gpu, "uncorrectable_count")),
        })  # fmt: skip

    def _power(self, gpu: Any) -> float:
        """ROCm 7 gives the first; before, cards of the MI300 series gave the second, others the third."""
        found = self._library.amdsmi_get_power_info(gpu)
        keys = ("socket_power", "current_socket_power", "average_socket_power")
        known = [power for power in (_number(found.get(key), _MOST_16) for key in keys) if power == power]
        return known[0] if known else _NAN

    def _temperature(self, gpu: Any) -> float:
        sensors = self._library.AmdSmiTemperatureType
        with suppress(self._library.AmdSmiException):
            found = self._sensor(gpu, sensors.HOTSPOT)
            if found == found:
                return found
        return self._sensor(gpu, sensors.EDGE)

    def _sensor(self, gpu: Any, sensor: Any) -> float:
        smi = self._library
        return _number(smi.amdsmi_get_temp_metric(gpu, sensor, smi.AmdSmiTemperatureMetric.CURRENT), _MOST_16)

    def _clock(self, gpu: Any, kind: Any) -> float:
        found = self._library.amdsmi_get_clock_info(gpu, kind)
        return _number(found.get("clk", found.get("cur_clk")), _MOST_16)  # until ROCm 6.1 the second

    def _errors(self, gpu: Any, key: str) -> float:
        smi = self._library
        return _number(smi.amdsmi_get_gpu_ecc_count(gpu, smi.AmdSmiGpuBlock.UMC)[key], _MOST_64)


class AmdProcessesSource(MetricSource):
    """``gpu.processes``: the number of processes of the run that hold memory of the card, by GPU.

    A process of ROCm opens every visible GPU, so that an open one alone does not count. NaN where the driver tells of
    no process how much memory it holds.

    Apart from the state, because AMD SMI looks at the open files of every process of the machine for each GPU.

    Args:
        library: The module ``amdsmi``.
        tree: The processes of the run.
        environ: See :class:`AmdSource`.
        prefix: See :class:`AmdSource`.
    """

    name = "processes on GPUs of AMD"
    core_share = 0.001

    def __init__(self, library: Any, tree: ProcessTree, environ: Mapping[str, str], prefix: str = "") -> None:
        self._library, self._tree, self._gpus = library, tree, _visible_gpus(library, environ, prefix)

    def read(self, now_ns: int) -> Sequence[MetricReading]:
        """See :meth:`MetricSource.read`."""
        of_run = {process.pid for process in self._tree.found}
        opened = holding = 0

        def processes(gpu: Any) -> int:
            nonlocal opened, holding
            found = [each for each in self._library.amdsmi_get_gpu_process_list(gpu) if each["pid"] in of_run]
            holders = sum(_number(each["memory_usage"]["vram_mem"], _MOST_64) > 0 for each in found)
            opened, holding = opened + len(found), holding + holders
            return holders

        (reading,) = self._gpus.readings({"gpu.processes": ("", processes)})
        if opened and not holding:
            return [MetricReading(reading.metric, [_NAN] * len(reading.values))]
        return [reading]


def amd_library(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Any:
    """The module ``amdsmi``.

    Args:
        environ: The environment of the run, which may tell where ROCm is.
        root: Where the file system begins.

    Raises:
        SourceUnavailableError: It is not installed, or cannot be used. The message is not empty only where there are
            GPUs of AMD that the process may open.
    """
    if not _has_gpus(root):
        raise SourceUnavailableError("")
    from importlib.metadata import PackageNotFoundError, version  # 10 ms, which other machines need not spend

    rocm = Path(environ.get("ROCM_HOME") or environ.get("ROCM_PATH") or root / "opt" / "rocm")
    own = rocm / "share" / "amd_smi"
    wanted = _version_of_rocm(rocm)
    # That of ROCm has its version; PyPI has the newest, unless another is asked for.
    named = f'"amdsmi=={wanted}.*"' if wanted else '"watchglass[amd]"'
    cure = f"pip install {own if own.is_dir() else named}"
    try:
        package = version("amdsmi")
    except PackageNotFoundError:
        package = ""  # on the path of Python, from ROCm
    # With another version of the library, structures of C differ: numbers would be wrong without any error.
    if wanted and package and int(package.split(".")[0]) < _FIRST_OF_LIBRARY and _minor(package) != wanted:
        raise SourceUnavailableError(
            f"GPUs of AMD are not sampled: amdsmi is of ROCm {_minor(package)}, and {rocm} is ROCm {wanted}; {cure}"
        )
    try:
        with redirect_stdout(io.StringIO()):  # it prints, and then fails
            import amdsmi
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "amdsmi":
            raise SourceUnavailableError(f"GPUs of AMD are not sampled: amdsmi is not installed; {cure}") from None
        raise SourceUnavailableError(
            "GPUs of AMD are not sampled: amdsmi does not load libamd_smi.so of ROCm "
            f"({type(error).__name__}: {_line(error)}); install amd-smi-lib of ROCm, and {cure}"
        ) from error
    return amdsmi


def _has_gpus(root: Path) -> bool:
    """Whether the process may open GPUs of AMD: ``/dev/kfd``, and a node of it that is not a processor."""
    if not (root / "dev" / "kfd").exists():
        return False
    for path in (root / "sys" / "class" / "kfd" / "kfd" / "topology" / "nodes").glob("*/gpu_id"):
        with suppress(OSError):  # one of another container
            if path.read_text().strip() not in ("", "0"):
                return True
    return False


def _version_of_rocm(rocm: Path) -> str:
    """Such as "6.4"; "" where it is not known."""
    try:
        return _minor((rocm / ".info" / "version").read_text())
    except OSError:
        return ""


def _minor(text: str) -> str:
    found = re.match(r"\d+\.\d+", text.strip())
    return found[0] if found else ""


def _visible_gpus(library: Any, environ: Mapping[str, str], prefix: str) -> Gpus:
    try:
        library.amdsmi_init()
        handles = library.amdsmi_get_processor_handles()
    except library.AmdSmiException as error:
        raise SourceUnavailableError(f"GPUs of AMD are not sampled: AMD SMI reports {_line(error)}") from error
    numbers = _numbers(library, handles)

    def uuids(gpu: tuple[int, Any]) -> Sequence[str]:
        found = []
        with suppress(Exception):
            serial = library.amdsmi_get_gpu_asic_info(gpu[1])["asic_serial"]
            found.append(f"GPU-{serial.removeprefix('0x')}")
        with suppress(Exception):
            found.append(library.amdsmi_get_gpu_enumeration_info(gpu[1])["hip_uuid"])
        return found

    # The runtime leaves those of the first variable, in its order; the numbers of the second count these.
    left = visible(sorted(zip(numbers, handles, strict=True), key=_first), environ.get("ROCR_VISIBLE_DEVICES"), uuids)
    left = visible(left, environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES")), uuids)
    if not left:
        raise SourceUnavailableError("GPUs of AMD are not sampled: none is visible to the run")

    unsupported = {
        library.amdsmi_wrapper.AMDSMI_STATUS_NOT_SUPPORTED, library.amdsmi_wrapper.AMDSMI_STATUS_NOT_YET_IMPLEMENTED,
    }  # fmt: skip
    # Keys that a version lacks, and texts that it cannot decode, concern one number too.
    return Gpus(
        {f"{prefix}{number}": handle for number, handle in sorted(left, key=_first)}, Exception,
        lambda error: getattr(error, "err_code", None) in unsupported,
    )  # fmt: skip


def _first(gpu: tuple[int, Any]) -> int:
    return gpu[0]


def _numbers(library: Any, handles: Sequence[Any]) -> list[int]:
    """The numbers by which HIP, and so PyTorch, calls the GPUs; places in the library before ROCm 6.4."""
    try:
        numbers = [library.amdsmi_get_gpu_enumeration_info(handle)["hip_id"] for handle in handles]
    except Exception:
        return list(range(len(handles)))
    if not all(isinstance(number, int) for number in numbers) or len(set(numbers)) < len(numbers):
        return list(range(len(handles)))
    return numbers


def _number(value: Any, most: float) -> float:
    """The number; NaN where it is unknown."""
    return float(value) if isinstance(value, (int, float)) and value <= most else _NAN


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
