"""The cost of observing a data loader: microseconds of the training thread for each batch.

Loops over a loader alternate: without watchglass, and with a hook that records the phases of steps and the times of
batches. The figures are minima and medians of processor time of the thread that reads the loader.

python benchmarks/loading.py --workers 0 --batches 2000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter

#: Loops of each kind, and samples of a batch.
_LOOPS, _SAMPLES = 10, 4


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=0, help="worker processes of the loader")
    parser.add_argument("--batches", type=int, default=2000, help="batches of a loop")
    options = parser.parse_args()
    bare_us: list[float] = []
    watched_us: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(_LOOPS):
            bare_us.append(_batch_us(options.workers, options.batches))
            hook = Hook(Path(folder) / f"run-{number}", profiler=True)
            PyTorchAdapter(hook.port, discover=True)
            watched_us.append(_batch_us(options.workers, options.batches))
            hook.close()
    for name, found in (("without", bare_us), ("with", watched_us)):
        print(f"{name:8} {min(found):7.1f} µs a batch, median {statistics.median(found):.1f}")


def _batch_us(workers: int, batches: int) -> float:
    data = TensorDataset(torch.zeros(_SAMPLES * batches, 4))
    found = iter(DataLoader(data, batch_size=_SAMPLES, num_workers=workers))
    next(found)  # starts the workers
    began_ns = time.thread_time_ns()
    for _ in found:
        pass
    return (time.thread_time_ns() - began_ns) / (batches - 1) / 1e3


if __name__ == "__main__":
    main()
