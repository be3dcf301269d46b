"""The cost of sampling system metrics: processor time of the sampler's process, as a share of one core.

python benchmarks/sampling.py --seconds 60 --processes 8
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from watchglass.config import SamplerConfig
from watchglass.store import LocalStore, create_attempt, create_run
from watchglass.supervise import CompanionProcess

#: The first readings take longer: they find the processes and the devices.
_WARM_S = 3.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="time that is measured")
    parser.add_argument("--processes", type=int, default=8, help="processes that are watched")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between samples")
    options = parser.parse_args()
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


if __name__ == "__main__":
    main()
