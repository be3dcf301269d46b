"""Whether memory grows: a watched training of 20,000 steps, its resident memory and what Python has allocated.

    python benchmarks/growth.py
    python benchmarks/growth.py --only statistics-1 --steps 5000 --json

For each configuration three training runs run one after the other, each in a separate process: a bare one, a watched
one, and a watched one whose Python allocations are traced. README.md in this folder explains the result.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from configurations import CONFIGURATIONS
from tables import Table, machine, sentence, versions
from watched import watching
from workloads import mlp

STEPS, SAMPLES = 20_000, 20

#: Share of the steps in which queues, buffers and pools of memory fill for the first time.
_SETTLING = 0.25

#: Looks without a fall before memory is taken to be at rest, and the time between them: longer than a flush interval.
_LOOKS, _LOOK_S = 10, 0.2

#: A number forgotten in a list at every step is 32 bytes a step, 480 kB from the first sample to the last. What the
#: recorder's last flush leaves behind differs by some 80 kB, and resident memory moves by megabytes.
RESIDENT_LIMIT, TRACED_LIMIT = 4 << 20, 384 << 10

#: All that write no raw tensors, which would take 12 GB of disk.
_WATCHED = {
    configuration.name: configuration
    for configuration in CONFIGURATIONS
    if "mlp" in configuration.targets and configuration.name != "raw-10"
}
_PARTS = ("bare", "resident", "traced")

Pause = Callable[[float], None]

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's


@dataclass(frozen=True)
class Growth:
    """Memory over steps.

    Attributes:
        slope: Bytes per step, the median over all pairs of samples (Theil and Sen), which no single jump moves.
        total: Bytes from the first sample to the last along that slope.
        peak: Most resident memory that the process ever had, where known.
    """

    slope: float
    total: float
    peak: int = 0


def growth(steps: ArrayLike, sizes: ArrayLike) -> Growth:
    """What samples of a memory's size say: ``steps`` and ``sizes`` (bytes), both [n] with n >= 2."""
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    first, second = np.triu_indices(len(x), 1)
    slope = float(np.median((y[second] - y[first]) / (x[second] - x[first])))
    return Growth(slope, slope * float(x[-1] - x[0]))


def sampled(step: Callable[[], None], size: Callable[[], int], steps: int, pause: Pause = time.sleep) -> Growth:
    """Make steps and look at the memory from time to time, once it has settled."""
    every = max(1, steps // SAMPLES)
    # One array from the start: samples that were collected in a list would be growth themselves.
    sizes = np.zeros(steps // every, dtype=np.int64)
    for sample in range(len(sizes)):
        for _ in range(every):
            step()
        sizes[sample] = size_at_rest(size, pause)
    settled = int(_SETTLING * len(sizes))
    return growth(every * np.arange(settled, len(sizes)), sizes[settled:])


def size_at_rest(size: Callable[[], int], pause: Pause) -> int:
    """The memory's size once it has not fallen for a while: what waits to be written comes and goes by the megabyte."""
    gc.collect()
    lowest, looks = size(), 0
    while looks < _LOOKS:
        pause(_LOOK_S)
        now = size()
        lowest, looks = min(lowest, now), 0 if now < lowest else looks + 1
    return lowest


def resident_bytes() -> int:
    """Resident memory of this process, without what the C library keeps to hand out again: that swings by 20 MB."""
    if _trim is not None:
        _trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def traced_bytes() -> int:
    """What Python holds of what it has allocated since tracing began."""
    return tracemalloc.get_traced_memory()[0]


def measure(part: str, name: str, steps: int) -> Growth:
    """Run one training run in this process."""
    torch.set_num_threads(1)  # memory is no matter of speed, and threads that wait for each other crawl on a busy core
    training = mlp()
    with ExitStack() as stack:
        step = training.step
        if part != "bare":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="growth-"))
            step = stack.enter_context(watching(training, _WATCHED[name], folder)).step
        if part == "traced":
            tracemalloc.start()
            stack.callback(tracemalloc.stop)

        found = sampled(step, traced_bytes if part == "traced" else resident_bytes, steps)
    return replace(found, peak=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def in_a_process(part: str, name: str, steps: int) -> Growth:
    """The same in a separate process, where nothing else has used memory."""
    command = [sys.executable, __file__, "--part", part, "--only", name, "--steps", str(steps)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Growth(**json.loads(finished.stdout))


def verdict(found: dict[str, Growth]) -> dict[str, Any]:
    """What the three training runs of one configuration say together."""
    resident = found["resident"].total - max(0.0, found["bare"].total)
    traced = found["traced"].total
    return {
        "resident_growth_bytes": round(resident),
        "traced_growth_bytes": round(traced),
        "bare_growth_bytes": round(found["bare"].total),
        "peak_bytes": found["resident"].peak,
        "bare_peak_bytes": found["bare"].peak,
        "grows": resident > RESIDENT_LIMIT or traced > TRACED_LIMIT,
    }


TABLE = Table(
    [
        ("configuration", 13), ("bare peak MB", 12), ("peak MB", 7), ("bare growth kB", 14), ("growth kB", 9),
        ("Python's growth kB", 18), ("verdict", 14),
    ]
)  # fmt: skip


def show(entry: dict[str, Any]) -> str:
    """One row of the table."""
    return TABLE.row([
        entry["config"], f"{entry['bare_peak_bytes'] / 1e6:.0f}", f"{entry['peak_bytes'] / 1e6:.0f}",
        f"{entry['bare_growth_bytes'] / 1e3:.1f}", f"{entry['resident_growth_bytes'] / 1e3:.1f}",
        f"{entry['traced_growth_bytes'] / 1e3:.1f}", "GROWS" if entry["grows"] else "does not grow",
    ])  # fmt: skip


def main() -> None:
    """Measure what the arguments ask for; leaves with status 1 where memory grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(_WATCHED), action="append", help="only this configuration")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps of each process")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--part", choices=_PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = args.only or ["default", "statistics-1"]
    if args.part:
        print(json.dumps(vars(measure(args.part, names[0], args.steps))))
        return

    about = {"machine": machine(), "versions": versions("watchglass", "torch", "numpy"), "steps": args.steps}
    if not args.json:
        print(f"{sentence(machine())}; {sentence(versions('watchglass', 'torch', 'numpy'))}")
        print(f"{args.steps} steps of the perceptron\n\n{TABLE.head}", flush=True)
    results = []
    for name in names:
        found = {part: in_a_process(part, name, args.steps) for part in _PARTS}
        results.append({"config": name, **verdict(found)})
        if not args.json:
            print(show(results[-1]), flush=True)
    if args.json:
        print(json.dumps({**about, "results": results}, indent=2))
    sys.exit(any(entry["grows"] for entry in results))


if __name__ == "__main__":
    main()
