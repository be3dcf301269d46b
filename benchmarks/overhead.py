"""What watching costs: the time of a watched training step over that of a bare one.

    python benchmarks/overhead.py                    everything, up to ten minutes for each of 16 lines
    python benchmarks/overhead.py --quick            the same, coarser, in about five minutes
    python benchmarks/overhead.py --model transformer --config 1 --threads 2 --json

README.md beside this file says how to read the result.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import watchglass
from pairs import Comparison, compare
from workloads import WORKLOADS, Training

#: Statistics of all weights, gradients and module outputs; what the fixed intervals are measured with.
COLLECTIONS = ("weights", "biases", "gradients", "outputs")

#: Most that a watched step may cost, where a target is set: by model and configuration, with 2 threads.
TARGETS = {
    ("transformer", "1"): 2.0,
    ("transformer", "10"): 1.10,
    ("mlp", "default"): 1.05,
    ("transformer", "default"): 1.05,
}

#: Allowance for the measurement itself: what the control may be off.
TOLERANCE = 0.0025

CONFIGS = ("1", "10", "100", "default")
THREADS = (1, 2)

#: Share of the training's time that the default configuration may use, as a ratio, and how often it writes, in seconds.
DEFAULT_BUDGET, FLUSH_INTERVAL_S = 0.01, 0.5

#: Rounds before the clock starts, until caches, allocators and the capture plan have settled.
WARM_UP = 20
WARM_UP_DEFAULT = 300

#: Rounds in a block of the default configuration, whose interval is the hook's own and may change.
BLOCK_DEFAULT = 64


def measure(
    model: str, config: str, threads: int, *, quick: bool, progress: Callable[[Comparison], None]
) -> Comparison:
    """Compare one watched training with two bare ones that start equal."""
    torch.set_num_threads(threads)
    watched, bare, other = (WORKLOADS[model]() for _ in range(3))
    fixed = config != "default"
    block = max(int(config), 5) if fixed else BLOCK_DEFAULT
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder, watching(watched, folder, config) as spent:
        for _ in range(WARM_UP if fixed else WARM_UP_DEFAULT):
            for training in (watched, bare, other):
                training.step()
        gc.collect()
        return compare(
            watched.step,
            bare.step,
            other.step,
            block=block,
            half_width=0.01 if quick else TOLERANCE,
            limit_s=15.0 if quick else 600.0,
            charged_s=spent,
            # The hook chooses when to capture by default, so blocks differ for a reason: none of them is left out.
            trim=0.1 if fixed else 0.0,
            progress=progress,
        )


@contextmanager
def watching(training: Training, folder: str, config: str) -> Iterator[Callable[[], float]]:
    """Watch a training; gives a clock of the processor seconds that threads of watchglass have used."""
    # Strict, so that a fault ends the measurement: a watchglass that had switched itself off would cost nothing.
    # Three trainings' time passes for one step of the watched one. What is done by the clock would be done three times
    # as often for each of its steps as beside no other training, and the budget be three times as large.
    settings: dict[str, Any] = {"strict": True, "flush_interval_s": 3 * FLUSH_INTERVAL_S}
    if config == "default":
        settings["overhead_budget"] = DEFAULT_BUDGET / 3
    else:
        settings["collections"] = [watchglass.Collection(name) for name in COLLECTIONS]
        settings["save_interval"] = int(config)
    known = set(threading.enumerate())
    handle = watchglass.watch(training.model, optimizer=training.optimizer, run=Path(folder) / "run", **settings)
    training.step()  # the recorder's thread starts with the first step
    clocks = [
        time.pthread_getcpuclockid(thread.ident)
        for thread in threading.enumerate()
        if thread not in known and thread.ident is not None
    ]
    try:
        yield lambda: sum(time.clock_gettime(clock) for clock in clocks)
    finally:
        handle.close()


def result(model: str, config: str, threads: int, comparison: Comparison) -> dict[str, Any]:
    """One entry of ``results``; the target holds with 2 threads and is null where there is none."""
    target = TARGETS.get((model, config)) if threads == 2 else None
    return {
        "model": model,
        "config": config,
        "threads": threads,
        "ratio": round(comparison.watched.ratio, 4),
        "ci95": [round(comparison.watched.low, 4), round(comparison.watched.high, 4)],
        "control": round(comparison.control.ratio, 4),
        "target": target,
        "met": None if target is None else comparison.watched.high <= target + TOLERANCE,
    }


def machine() -> dict[str, Any]:
    """What it was measured on."""
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"processor": processor, "cores": len(os.sched_getaffinity(0)), "system": platform.platform()}


def versions() -> dict[str, str]:
    """What it was measured with."""
    return {
        "watchglass": watchglass.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def main() -> None:
    """Measure what the arguments ask for and print a table or, with ``--json``, one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="at most 15 s each, for a first look")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--model", choices=list(WORKLOADS), action="append", help="only this model; may be repeated")
    parser.add_argument("--config", choices=CONFIGS, action="append", help="only this interval; may be repeated")
    parser.add_argument("--threads", type=int, choices=THREADS, action="append", help="only so many threads")
    args = parser.parse_args()

    results = []
    if not args.json:
        print(HEADER)
    for model in args.model or WORKLOADS:
        for threads in args.threads or THREADS:
            for config in args.config or CONFIGS:
                name = f"{model}, interval {config}, {threads} thread{'s' if threads > 1 else ''}"
                comparison = measure(model, config, threads, quick=args.quick, progress=Progress(name))
                results.append(result(model, config, threads, comparison))
                if not args.json:
                    print(row(results[-1], comparison), flush=True)
    if args.json:
        print(json.dumps({"machine": machine(), "versions": versions(), "results": results}, indent=2))


HEADER = (
    f"{'model':12} {'interval':>8} {'threads':>7} {'bare ms':>8} {'ratio':>7} {'95 %':>15} "
    f"{'control':>8} {'+-':>7} {'blocks':>7} {'target':>7}  met"
)


def row(entry: dict[str, Any], comparison: Comparison) -> str:
    """One line of the table."""
    low, high = entry["ci95"]
    met = {True: "yes", False: "NO", None: ""}[entry["met"]]
    return (
        f"{entry['model']:12} {entry['config']:>8} {entry['threads']:>7} {comparison.bare_ms:>8.3f} "
        f"{entry['ratio']:>7.4f} {f'{low:.4f}-{high:.4f}':>15} {entry['control']:>8.4f} "
        f"{comparison.control.half_width:>7.4f} {comparison.blocks:>7} {entry['target'] or '':>7}  {met}"
    )


class Progress:
    """Shows on a terminal, once a second, how far a measurement is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.shown = time.monotonic()

    def __call__(self, now: Comparison) -> None:
        """Show ``now`` if it is time."""
        if sys.stderr.isatty() and time.monotonic() - self.shown > 1:
            self.shown = time.monotonic()
            control = f"control {now.control.ratio:.4f} +- {now.control.half_width:.4f}"
            print(f"\r{self.name}: {now.watched.ratio:.4f}, {control}, {now.seconds:.0f} s ", end="", file=sys.stderr)


if __name__ == "__main__":
    main()
