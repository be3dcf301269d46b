"""What statistics of a GPU's tensors take: with Triton's kernels, and with PyTorch's own operators.

Each way reads the parameters of a decoder of 136 million, or of outputs in bfloat16, and brings statistics and
histograms to the host. ``device`` is the time of the GPU, by its events; ``thread`` is what the training's thread
spends on launches. The limit is the time in which the memory could give every element once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import limits
from tables import Table, machine, sentence, versions
from watchglass.capture.planning.cost import Memory
from watchglass.capture.pytorch.device.device_statistics import DeviceStatistics
from workloads import large_transformer

WAYS: dict[str, dict[str, Any]] = {"Triton": {}, "PyTorch": {"triton": lambda device: None}}
_WARM_UP = 5


@dataclass
class _Account:
    memory: Memory = field(default_factory=Memory)
    device_ns: int = 0


def tensors_of(kind: str, device: str) -> list[Tensor]:
    """What is read: ``parameters``, ``outputs`` (a block's, in bfloat16), or one ``logits``."""
    if kind == "parameters":
        return [parameter.detach() for parameter in large_transformer(device).model.parameters()]
    if kind == "outputs":
        return [torch.randn(16, 512, 768, device=device, dtype=torch.bfloat16) for _ in range(60)]
    return [torch.randn(16, 512, 32768, device=device, dtype=torch.bfloat16)]


def times(way: str, tensors: list[Tensor], repeats: int) -> tuple[float, float]:
    """Milliseconds of the device, and of the thread that launches; medians."""
    computed = DeviceStatistics(_Account(), **WAYS[way])
    device_ms, thread_ms = [], []
    for number in range(_WARM_UP + repeats):
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        began = time.perf_counter()
        rows, histograms = computed.summaries(tensors)
        computed.send()
        took = time.perf_counter() - began
        end.record()
        torch.cuda.synchronize()
        rows.resolve(), histograms.resolve()
        if number >= _WARM_UP:
            device_ms.append(start.elapsed_time(end))
            thread_ms.append(1e3 * took)
    return statistics.median(device_ms), statistics.median(thread_ms)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="measurements of each figure")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("device_statistics.py: no GPU that PyTorch can use", file=sys.stderr)
        return 2
    print(sentence(machine()), sentence(versions("torch", "triton", "watchglass")), sep="\n")
    bytes_per_s = limits.bandwidth("cuda")
    table = Table(
        [
            ("tensors", 10),
            ("GB", 6),
            ("limit ms", 8),
            ("way", 8),
            ("device ms", 9),
            ("times limit", 11),
            ("thread ms", 9),
        ]
    )
    print(table.head)
    for kind in ("parameters", "outputs", "logits"):
        tensors = tensors_of(kind, "cuda")
        size = sum(tensor.nbytes for tensor in tensors)
        limit = 1e3 * size / bytes_per_s
        for way in WAYS:
            device, thread = times(way, tensors, arguments.repeats)
            figures = (
                f"{size / 1e9:.2f}",
                f"{limit:.3f}",
                way,
                f"{device:.3f}",
                f"{device / limit:.1f}",
                f"{thread:.3f}",
            )
            print(table.row([kind, *figures]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
