"""NVML without a GPU: what a test says that a library of the driver answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class FakeNvml:
    """The functions of ``pynvml`` that are called, with two GPUs of one kind.

    Attributes:
        use: Utilisation of each GPU in percent.
        sent: Bytes that each has sent over PCIe.
        broken: What every call raises; None for nothing.
        unsupported: Names of functions that the GPUs do not support.
        denied: Names of functions that the process may not call.
        lost: GPUs that have fallen off the bus.
        processes: Process ids on each GPU.
    """

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_VOLATILE_ECC = 0, 1, 2, 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 197, 198

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801  named as in pynvml
        pass

    def __init__(self) -> None:
        self.use, self.sent, self.processes = [90, 10], [0, 0], [[], []]
        self.broken: Exception | None = None
        self.unsupported: set[str] = set()
        self.denied: set[str] = set()
        self.lost: set[int] = set()
        self.open = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        answers = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda place: place,
            "nvmlDeviceGetUUID": lambda gpu: f"GPU-{'ab'[gpu]}123",
            "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=self.use[gpu], memory=5),
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=80 << 30, used=(20 + 20 * gpu) << 30),
            "nvmlDeviceGetPowerUsage": lambda gpu: 300_500,
            "nvmlDeviceGetTemperature": lambda gpu, sensor: 61,
            "nvmlDeviceGetClockInfo": lambda gpu, clock: {1: 1410, 2: 1593}[clock],
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: 4,
            "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, counter: [7, 0][kind],
            "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [SimpleNamespace(pid=p) for p in self.processes[gpu]],
            "nvmlDeviceGetFieldValues": self._fields,
            "nvmlInit": lambda: setattr(self, "open", self.open + 1),
            "nvmlShutdown": lambda: setattr(self, "open", self.open - 1),
        }

        def call(*arguments: Any) -> Any:
            if self.broken is not None:
                raise self.broken
            if name in self.denied:
                raise self.NVMLError("Insufficient Permissions")
            if arguments and arguments[0] in self.lost:
                raise self.NVMLError("GPU is lost")
            if name in self.unsupported:
                raise self.NVMLError_NotSupported("Not Supported")
            return answers[name](*arguments)

        return call

    def _fields(self, gpu: int, fields: list[int]) -> list[Any]:
        found = {197: self.sent[gpu], 198: None}
        return [
            SimpleNamespace(nvmlReturn=0 if found[each] is not None else 3, value=SimpleNamespace(ullVal=found[each]))
            for each in fields
        ]
