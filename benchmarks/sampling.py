"""The cost of sampling system metrics: processor time of the sampler's process, as a share of one core.

python benchmarks/sampling.py --seconds 60 --processes 8

With --days, the size of a stream instead: a sampler on a simulated clock writes so many days of a machine with 128
cores, 8 GPUs and 32 processes, all of them busy, and pages of ten minutes of it are read.

python benchmarks/sampling.py --days 7
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from watchglass.config import SamplerConfig
from watchglass.profile import Metric, MetricReading, MetricSource, Sampler
from watchglass.run import open_run
from watchglass.store import LocalStore, StreamWriter, create_attempt, create_run
from watchglass.supervise import CompanionProcess

#: The first readings take longer: they find the processes and the devices.
_WARM_S = 3.0
#: Of a large machine: cores, GPUs, processes, metrics with one number; metrics that keep all bits.
_CORES, _GPUS, _PROCESSES, _SINGLE = 128, 8, 32, 24
_EXACT = {"process.memory", "gpu.memory.used", "gpu.constant"}
#: Simulated samples that are drawn at a time, a page in seconds, and how many are read.
_DRAWN, _PAGE_S, _PAGES = 4096, 600, 20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="time that is measured")
    parser.add_argument("--processes", type=int, default=8, help="processes that are watched")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between samples")
    parser.add_argument("--random", action="store_true", help="with --days: all numbers are random")
    parser.add_argument("--days", type=float, help="write and read a simulated stream of so many days")
    options = parser.parse_args()
    if options.days is not None:
        with tempfile.TemporaryDirectory() as folder:
            _simulate(Path(folder) / "run", options.days, options.interval, _LargeMachine(options.random))
        return
    sleeping = [sys.executable, "-c", "import time; time.sleep(3600)"]
    watched = [subprocess.Popen(sleeping) for _ in range(options.processes)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            share = _share(Path(folder) / "run", options.seconds, options.interval)
    finally:
        for process in watched:
            process.kill()
            process.wait()
    print(f"sampler: {100 * share:.2f} % of a core, {options.processes} processes, every {options.interval:g} s")


def _share(run: Path, seconds: float, interval_s: float) -> float:
    store = LocalStore(run)
    create_run(store, command=[])
    create_attempt(store, "")
    sampler = CompanionProcess(SamplerConfig(str(run), 0, os.getpid(), interval_s=interval_s), os.environ)
    try:
        time.sleep(_WARM_S)
        process = psutil.Process(sampler.pid)
        before, begun_s = process.cpu_times(), time.monotonic()
        time.sleep(seconds)
        after, measured_s = process.cpu_times(), time.monotonic() - begun_s
    finally:
        sampler.let_go()
        sampler.wait(30)
    spent_s: float = after.user + after.system - before.user - before.system
    return spent_s / measured_s


class _Clock:
    """A clock that moves when it is told to."""

    now_ns = 1_000_000_000

    def monotonic_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return self.now_ns + 1_700_000_000_000_000_000

    def monotonic(self) -> float:
        return self.now_ns / 1e9

    def time(self) -> float:
        return self.time_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(1e9 * seconds)


class _LargeMachine(MetricSource):
    """Numbers of a machine all of whose cores, GPUs and processes are busy.

    Args:
        random: Draw all numbers from 0 to 100 with as many bits as a sample keeps, the worst case for compression.
    """

    name = "large machine"

    def __init__(self, random: bool) -> None:
        self._random, self._rng = random, np.random.default_rng(0)
        self._pages = self._rng.integers(50_000, 2_000_000, _PROCESSES)
        self._at, self._drawn = 0, self._draw(0)
        self._metrics = [
            Metric(name, "", tuple(map(str, range(values.shape[1]))), name in _EXACT)
            for name, values in self._drawn.items()
        ]

    @property
    def numbers(self) -> int:
        """Numbers of a sample."""
        return sum(values.shape[1] for values in self._drawn.values())

    def read(self, now_ns: int) -> Sequence[MetricReading]:
        if self._at == len(self._drawn["cpu.core.utilization"]):
            self._at, self._drawn = 0, self._draw(_DRAWN)
        values = [found[self._at].tolist() for found in self._drawn.values()]
        self._at += 1
        return [MetricReading(*each) for each in zip(self._metrics, values, strict=True)]

    def _draw(self, count: int) -> dict[str, NDArray[np.floating[Any]]]:
        """Samples of each metric, [count, instances]."""
        found = self._busy(count)
        if self._random:
            return {name: np.float32(100) * self._rng.random(each.shape, np.float32) for name, each in found.items()}
        return {name: np.asarray(each, np.float64) for name, each in found.items()}

    def _busy(self, count: int) -> dict[str, NDArray[Any]]:
        rng, cores, gpus = self._rng, (count, _CORES), (count, _GPUS)
        ticks = rng.binomial(50, 0.6, cores)
        walk = self._pages + np.cumsum(rng.integers(-50, 51, (count, _PROCESSES)), axis=0)
        self._pages = walk[-1] if count else self._pages
        pieces = rng.integers(10_000, 11_000, gpus)  # of 2 MiB
        rates = rng.lognormal(20, 1, (count, 4 * _GPUS + _SINGLE))
        constant = np.full((count, 4 * _GPUS), 80 << 30)
        return {
            "cpu.core.utilization": 100 * ticks / np.maximum(ticks, 50 + rng.integers(-1, 2, cores)),
            "process.utilization": rng.binomial(50, 0.4, walk.shape) / (0.5 + rng.normal(0, 5e-4, walk.shape)),
            "process.memory": 4096 * walk,
            "gpu.utilization": rng.integers(60, 101, gpus),
            "gpu.memory.used": pieces << 21,
            "gpu.memory.utilization": 100 * pieces / (40 << 10),
            "gpu.power": 300 + rng.normal(0, 30, gpus).round(3),
            "gpu.temperature": rng.integers(60, 70, gpus),
            "gpu.clock": 1200 + 15 * rng.integers(0, 20, gpus),
            "gpu.throttle": 4 * rng.integers(0, 2, gpus),
            "gpu.constant": constant,
            "rates": rates,
        }


def _simulate(run: Path, days: float, interval_s: float, machine: _LargeMachine) -> None:
    store, clock = LocalStore(run), _Clock()
    create_run(store, command=[])
    create_attempt(store, "")
    sampler = Sampler([machine], StreamWriter(store, 0, "system", clock=clock), interval_s, clock=clock)
    count = int(days * 86_400 / interval_s)
    with closing(sampler):
        for _ in range(count):
            sampler.sample()
            clock.sleep(sampler.wait_s)
    written = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    print(f"{count:,} samples of {machine.numbers} numbers every {interval_s:g} s: {written / 1e9:.3f} GB")
    begun_s = time.perf_counter()
    found = open_run(run)
    print(f"opened in {time.perf_counter() - begun_s:.2f} s")
    wall_s, spent_s = [], []
    for start_s in np.random.default_rng(1).uniform(1, max(2.0, days * 86_400 - _PAGE_S), _PAGES):
        start_ns = int(1e9 * start_s)
        begun_s, before_s = time.perf_counter(), time.process_time()
        page = found.samples("cpu.core.utilization", start=start_ns, stop=start_ns + int(_PAGE_S * 1e9))
        wall_s.append(time.perf_counter() - begun_s)
        spent_s.append(time.process_time() - before_s)
        assert abs(len(page) - _PAGE_S / interval_s) < 2, len(page)
    print(
        f"{_PAGES} pages of {_PAGE_S} s: {np.median(wall_s):.3f} s each, at most {max(wall_s):.3f} s; processor time "
        f"{np.median(spent_s):.3f} s, at most {max(spent_s):.3f} s"
    )


if __name__ == "__main__":
    main()
