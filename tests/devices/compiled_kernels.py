"""Compiles Triton's kernels for a GPU that is not there, as a training run would: with the arguments of real calls.

Run as a program, since Triton compiles either for GPUs or for its interpreter, for the life of a process::

    python -m devices.compiled_kernels cuda:90        # prints the number of kernels compiled
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from devices.device_cases import with_triton, without_warnings
from watchglass.capture.planning.cost import Memory
from watchglass.capture.pytorch.device import triton_kernels
from watchglass.capture.pytorch.device.device_statistics import DeviceStatistics
from watchglass.stats import DTYPE_CODES

DTYPES = [getattr(torch, name) for name in DTYPE_CODES if hasattr(torch, name)]


class Driver:
    """A GPU of this kind, as far as compiling asks."""

    def __init__(self, kind: str, architecture: str) -> None:
        self._target = GPUTarget(kind, int(architecture), 32) if kind == "cuda" else GPUTarget(kind, architecture, 64)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


class Compiled:
    """A kernel that is compiled where it would be launched; adds what came of it to ``found``."""

    def __init__(self, kernel: Any, found: set[str]) -> None:
        self._kernel = kernel
        self._found = found

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **settings: Any) -> None:
            result = self._kernel.warmup(*args, grid=grid, **settings)
            assert result.asm["cubin" if "cubin" in result.asm else "hsaco"]
            self._found.add(result.hash)

        return launch


def main(target: str) -> None:
    kind, _, architecture = target.partition(":")
    triton.runtime.driver.set_active(Driver(kind, architecture))
    found: set[str] = set()
    triton_kernels.summarise = Compiled(triton_kernels.summarise, found)
    triton_kernels.join = Compiled(triton_kernels.join, found)
    statistics = DeviceStatistics(SimpleNamespace(memory=Memory(), device_ns=0), triton=with_triton)

    def compiled(tensors: list[torch.Tensor], *others: Any) -> int:
        before = len(found)
        with without_warnings():
            for seed in (0, 1, 16, 17, 12345):  # nothing is compiled for a place, a seed or a size
                statistics.summaries(tensors, *others, seed=seed)
                statistics.summaries([torch.cat([tensor, tensor]) for tensor in tensors], *others[:0], seed=seed)
            statistics.send()
        return len(found) - before

    assert compiled([torch.ones(3)]) == 2  # one to read, one to join
    for dtype in DTYPES:
        tensors = [torch.zeros(40).to(dtype), torch.zeros(100_000).to(dtype)]
        assert compiled(tensors) <= 1
        assert compiled(tensors, tensors) <= 1  # some lie alike
    assert compiled([torch.ones(40)], None, 2.0) == 1
    assert compiled([torch.ones(40)[1:]]) == 1  # not at a multiple of 16 bytes
    # Booleans lie as bytes do; one more to join, to divide, to read what lies askew.
    assert len(found) == 2 * (len(DTYPES) - 1) + 3
    print(len(found))


if __name__ == "__main__":
    main(sys.argv[1])
