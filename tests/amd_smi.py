"""AMD SMI without a GPU: what a test says that the library of ROCm answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

UNKNOWN = "N/A"


class FakeAmdSmi:
    """The functions of ``amdsmi`` that are called, with two GPUs of one kind.

    HIP counts them in the other order than the library.

    Attributes:
        use: Utilisation of each GPU in percent, by place in the library; so are the other lists.
        power: What ``amdsmi_get_power_info`` returns.
        broken: What every call raises; None for nothing.
        unsupported: Names of functions that the GPUs do not support.
        denied: Names of functions that the process may not call.
        missing: Names of functions that this version lacks.
        lost: GPUs that have fallen off the bus.
        processes: Of each GPU, process ids and the bytes that they hold.
        serials: Of each GPU.
        hip_ids: The numbers of the GPUs in HIP.
        clock_key: ``"cur_clk"`` before ROCm 6.2.
        open: Whether the library is.
    """

    class AmdSmiClkType(IntEnum):
        GFX, MEM = 0, 4

    class AmdSmiMemoryType(IntEnum):
        VRAM = 0

    class AmdSmiTemperatureType(IntEnum):
        EDGE, HOTSPOT = 0, 1

    class AmdSmiTemperatureMetric(IntEnum):
        CURRENT = 0

    class AmdSmiGpuBlock(IntEnum):
        UMC = 1

    class AmdSmiException(Exception):
        pass

    class AmdSmiLibraryException(AmdSmiException):
        def __init__(self, err_code: int, err_info: str = "") -> None:
            super().__init__(err_code)
            self.err_code, self.err_info = err_code, err_info

        def __str__(self) -> str:
            return f"Error code:\n\t{self.err_code} | {self.err_info}"

    amdsmi_wrapper = SimpleNamespace(AMDSMI_STATUS_NOT_SUPPORTED=2, AMDSMI_STATUS_NOT_YET_IMPLEMENTED=3)

    def __init__(self) -> None:
        self.use: list[Any] = [10, 90]
        self.power: dict[str, Any] = {
            "socket_power": 301, "current_socket_power": UNKNOWN, "average_socket_power": 301, "gfx_voltage": 900,
            "soc_voltage": UNKNOWN, "mem_voltage": UNKNOWN, "power_limit": 750_000_000,
        }  # fmt: skip
        self.hotspot: Any = 61
        self.processes: list[list[tuple[int, int]]] = [[], []]
        self.serials = ["0x00000000000000B1", "0x00000000000000A0"]
        self.hip_ids: list[Any] = [1, 0]
        self.clock_key = "clk"
        self.broken: Exception | None = None
        self.unsupported: set[str] = set()
        self.denied: set[str] = set()
        self.missing: set[str] = set()
        self.lost: set[int] = set()
        self.open = False

    def __getattr__(self, name: str) -> Any:
        answers = self.__dict__.get("missing", set()), self.answers()
        if name in answers[0] or name not in answers[1]:
            raise AttributeError(name)
        answer = answers[1][name]

        def call(*arguments: Any) -> Any:
            inspect.signature(answer).bind(*arguments)
            if self.broken is not None:
                raise self.broken
            if name in self.denied:
                raise self.AmdSmiLibraryException(10, "AMDSMI_STATUS_NO_PERM - Permission Denied")
            if name not in ("amdsmi_init", "amdsmi_shut_down") and not self.open:
                raise self.AmdSmiLibraryException(32, "AMDSMI_STATUS_NOT_INIT - Device not initialized")
            if arguments and arguments[0] in self.lost:
                raise self.AmdSmiLibraryException(31, "AMDSMI_STATUS_NOT_FOUND - Device Not found")
            if name in self.unsupported:
                raise self.AmdSmiLibraryException(2, "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")
            return answer(*arguments)

        return call

    def answers(self) -> dict[str, Callable[..., Any]]:
        """By name of the function, with the parameters of the library."""
        return {
            "amdsmi_init": lambda: setattr(self, "open", True),
            "amdsmi_shut_down": lambda: setattr(self, "open", False),
            "amdsmi_get_processor_handles": lambda: [0, 1],
            "amdsmi_get_gpu_asic_info": lambda processor_handle: {"asic_serial": self.serials[processor_handle]},
            "amdsmi_get_gpu_enumeration_info": lambda processor_handle: {
                "hip_id": self.hip_ids[processor_handle], "hip_uuid": f"GPU-{'ba'[processor_handle]}123",
            },
            "amdsmi_get_gpu_activity": lambda processor_handle: {
                "gfx_activity": self.use[processor_handle], "umc_activity": 5, "mm_activity": UNKNOWN,
            },
            "amdsmi_get_gpu_memory_usage": lambda processor_handle, mem_type: (40 - 20 * processor_handle) << 30,
            "amdsmi_get_gpu_memory_total": lambda processor_handle, mem_type: 80 << 30,
            "amdsmi_get_power_info": lambda processor_handle: self.power,
            "amdsmi_get_temp_metric": lambda processor_handle, sensor_type, metric: [48, self.hotspot][sensor_type],
            "amdsmi_get_clock_info": lambda processor_handle, clock_type: {
                self.clock_key: {0: 2100, 4: 1300}[clock_type], "min_clk": 500, "max_clk": 2100,
            },
            "amdsmi_get_gpu_ecc_count": lambda processor_handle, block: {
                "correctable_count": 7, "uncorrectable_count": 0, "deferred_count": 0,
            },
            "amdsmi_get_gpu_process_list": lambda processor_handle: [
                {
                    "name": UNKNOWN, "pid": pid, "mem": held, "engine_usage": {"gfx": 0, "enc": 0},
                    "memory_usage": {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": held},
                }
                for pid, held in self.processes[processor_handle]
            ],
        }  # fmt: skip
