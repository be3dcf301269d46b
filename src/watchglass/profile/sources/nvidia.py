"""GPUs of NVIDIA, by NVML."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from watchglass.profile.metrics import Metric, MetricReading, MetricSource, Rates, SourceUnavailableError
from watchglass.profile.sources.gpus import Gpus, visible
from watchglass.profile.sources.processes import ProcessTree

_NAN = float("nan")
#: Counters of the links by name of the field, with the bytes of their unit (nvml.h).
_LINKS = {
    "gpu.pcie.sent": ("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 1),
    "gpu.pcie.received": ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 1),
    "gpu.nvlink.sent": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", 1024),
    "gpu.nvlink.received": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", 1024),
}


class NvidiaSource(MetricSource):
    """``gpu.utilization``, ``gpu.memory.utilization``, ``gpu.memory.used`` and ``gpu.memory.limit`` by GPU.

    ``gpu.utilization`` is the share of time in which a kernel ran. ``gpu.memory.utilization`` is the used share of the
    memory.

    Args:
        library: The module ``pynvml``.
        visible_devices: Value of ``CUDA_VISIBLE_DEVICES``; None for all GPUs.
    """

    name = "GPUs"

    def __init__(self, library: Any, visible_devices: str | None = None) -> None:
        self._library, self._gpus = library, _visible_gpus(library, visible_devices)
        instances = tuple(self._gpus.handles)
        self._use = Metric("gpu.utilization", "%", instances)
        self._share = Metric("gpu.memory.utilization", "%", instances)
        self._used = Metric("gpu.memory.used", "bytes", instances, exact=True)
        self._limit = Metric("gpu.memory.limit", "bytes", instances, exact=True)

    def read(self, now_ns: int) -> Sequence[MetricReading]:
        """See :meth:`MetricSource.read`."""
        library = self._library
        use = self._gpus(lambda handle: library.nvmlDeviceGetUtilizationRates(handle).gpu)
        memory = [_memory(library, handle) for handle in self._gpus.handles.values()]
        return [
            MetricReading(self._use, use),
            MetricReading(self._share, [100 * used / limit if limit else _NAN for used, limit in memory]),
            MetricReading(self._used, [used for used, _ in memory]),
            MetricReading(self._limit, [limit for _, limit in memory]),
        ]

    def close(self) -> None:
        """End NVML."""
        with suppress(Exception):
            self._library.nvmlShutdown()


class NvidiaStateSource(MetricSource):
    """Power, temperature, clocks, throttling, traffic, errors of memory and processes of the run, by GPU.

    ``gpu.power`` (W), ``gpu.temperature`` (°C), ``gpu.clock`` and ``gpu.memory.clock`` (MHz), ``gpu.throttle`` (bits as
    NVML's ``nvmlClocksThrottleReason``), ``gpu.ecc.corrected`` and ``gpu.ecc.uncorrected`` (since the driver was
    loaded), ``gpu.pcie.*`` and ``gpu.nvlink.*`` (bytes/s), and ``gpu.processes``, the number of processes of the run on
    it. In a container that also shows GPUs of other containers, the GPUs of the run are those with such processes.

    Args:
        library: The module ``pynvml``.
        tree: The processes of the run; None where they cannot be read.
        visible_devices: Value of ``CUDA_VISIBLE_DEVICES``; None for all GPUs.
    """

    name = "state of GPUs"
    core_share = 0.001

    def __init__(self, library: Any, tree: ProcessTree | None, visible_devices: str | None = None) -> None:
        self._library, self._tree, self._rates = library, tree, Rates()
        self._gpus = _visible_gpus(library, visible_devices)
        self._instances = tuple(self._gpus.handles)
        self._fields = {name: getattr(library, field) for name, (field, _) in _LINKS.items() if hasattr(library, field)}

    def read(self, now_ns: int) -> Sequence[MetricReading]:
        """See :meth:`MetricSource.read`."""
        nvml = self._library
        corrected, uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        asked: dict[str, tuple[str, Callable[[Any], Any]]] = {
            "gpu.power": ("W", lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
            "gpu.temperature": ("°C", lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
            "gpu.clock": ("MHz", lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
            "gpu.memory.clock": ("MHz", lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)),
            "gpu.throttle": ("", nvml.nvmlDeviceGetCurrentClocksThrottleReasons),
            "gpu.ecc.corrected": ("", lambda gpu: self._errors(gpu, corrected)),
            "gpu.ecc.uncorrected": ("", lambda gpu: self._errors(gpu, uncorrected)),
        }
        if self._tree is not None:
            of_run = {process.pid for process in self._tree.found}
            asked["gpu.processes"] = (
                "", lambda gpu: sum(each.pid in of_run for each in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)),
            )  # fmt: skip
        found = self._gpus.readings(asked)
        links = [self._traffic(number, handle, now_ns) for number, handle in self._gpus.handles.items()]
        found += [
            MetricReading(Metric(name, "bytes/s", self._instances), [each[name] for each in links]) for name in _LINKS
        ]
        return found

    def _errors(self, handle: Any, kind: int) -> float:
        nvml = self._library
        return float(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC))

    def _traffic(self, number: str, handle: Any, now_ns: int) -> Mapping[str, float]:
        """Bytes per second of each link, from counters: ``nvmlDeviceGetPcieThroughput`` blocks for 20 ms."""
        found = dict.fromkeys(_LINKS, _NAN)
        nvml, names = self._library, list(self._fields)
        try:
            values = nvml.nvmlDeviceGetFieldValues(handle, [self._fields[name] for name in names])
        except nvml.NVMLError:
            return found
        for name, value in zip(names, values, strict=True):
            if value.nvmlReturn == 0:
                counter = value.value.ullVal * _LINKS[name][1]
                found[name] = self._rates.of(f"{number} {name}", counter, now_ns)
        return found


def nvidia_library() -> Any:
    """The module ``pynvml``.

    Raises:
        SourceUnavailableError: It is not installed. The message is not empty only where there are GPUs.
    """
    try:
        import pynvml
    except ImportError:
        if os.path.exists("/proc/driver/nvidia") or os.path.exists("/dev/nvidiactl"):
            raise SourceUnavailableError(
                'GPUs of NVIDIA are not sampled: nvidia-ml-py is not installed; pip install "watchglass[gpu]"'
            ) from None
        raise SourceUnavailableError("") from None
    return pynvml


def _visible_gpus(library: Any, visible_devices: str | None) -> Gpus:
    try:
        library.nvmlInit()
        handles = [library.nvmlDeviceGetHandleByIndex(place) for place in range(library.nvmlDeviceGetCount())]
    except library.NVMLError as error:
        raise SourceUnavailableError(f"GPUs of NVIDIA are not sampled: NVML reports {error}") from error

    def uuids(gpu: tuple[int, Any]) -> Sequence[str]:
        uuid = library.nvmlDeviceGetUUID(gpu[1])
        return [uuid.decode() if isinstance(uuid, bytes) else str(uuid)]

    chosen = dict(visible(list(enumerate(handles)), visible_devices, uuids))
    if not chosen:
        raise SourceUnavailableError("GPUs of NVIDIA are not sampled: none is visible to the run")
    unsupported = getattr(library, "NVMLError_NotSupported", None)
    handles_by_name = {str(number): chosen[number] for number in sorted(chosen)}
    return Gpus(handles_by_name, library.NVMLError, lambda error: type(error) is unsupported)


def _memory(library: Any, handle: Any) -> tuple[float, float]:
    try:
        found = library.nvmlDeviceGetMemoryInfo(handle)
    except library.NVMLError:
        return _NAN, _NAN
    return float(found.used), float(found.total)
