"""What following many runs with one process costs: quiet runs, runs that have ended, runs that write.

    python benchmarks/fleet.py
    python benchmarks/fleet.py --quick
    python benchmarks/fleet.py --json quiet live

Runs are written by the real writer into a temporary folder; those that write do so from a process of their own.
README.md in this folder explains the result. Leaves with status 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from figures import Result, arguments, measure
from watchglass.config import EvaluatorConfig
from watchglass.evaluate import Followed
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.many.fleet import Fleet
from watchglass.rules import default_rules
from watchglass.store import LocalStore
from watchglass.testing import RunBuilder, Step, build_run

#: A quiet run is asked as rarely as ever once it has been quiet for so long.
_QUIET_S = 600.0
_TENSORS, _FLUSH_S, _STEPS_PER_FLUSH = 12, 0.5, 2


class Listening:
    """An audience that only counts, and the output to which findings are printed, with the time of each."""

    def __init__(self) -> None:
        self.begun_runs = self.ended_runs = 0
        self.printed: dict[str, float] = {}

    def begun(self, name: str, location: str) -> None:
        """A run is evaluated from now on."""
        self.begun_runs += 1

    def ended(self, name: str, location: str, followed: Followed) -> None:
        """A training run has ended."""
        self.ended_runs += 1

    def skipped(self, name: str, location: str, reason: str) -> None:
        """A run cannot be followed."""
        raise SystemExit(f"{name}: {reason}")

    def notified(self, sentence: str) -> None:
        """Something worth a line."""

    def write(self, text: str) -> int:
        """Note when the first finding of a run is printed."""
        name = text.partition("[")[2].partition("]")[0]
        if "ExplodingTensor" in text:
            self.printed.setdefault(name, time.monotonic())
        return len(text)

    def flush(self) -> None:
        """There is nothing to flush."""


def steps(count: int, seed: int = 0) -> list[Step]:
    """Steps of a small training that learns."""
    generator = np.random.default_rng(seed)
    made = []
    for number in range(count):
        tensors: dict[str, Any] = {}
        for layer in range(_TENSORS // 3):
            weight = generator.normal(size=(8, 8)).astype(np.float32)
            gradient = generator.normal(scale=0.1, size=(8, 8)).astype(np.float32)
            tensors |= {f"fc{layer}.weight": weight, f"gradient/fc{layer}.weight": gradient}
            tensors[f"update/fc{layer}.weight"] = -0.01 * gradient
        made.append(Step({"loss": 2.0 * 0.99**number + 0.1, "learning_rate": 0.1}, tensors))
    return made


@contextmanager
def followed(folder: Path, listening: Listening) -> Iterator[Fleet]:
    """A fleet with the default rules, closed at the end."""
    config = EvaluatorConfig(str(folder), None, default_rules())
    fleet = Fleet(config, LocalStore(folder), listening, output=listening)  # type: ignore[arg-type]
    try:
        yield fleet
    finally:
        fleet.close("interrupted", patience_s=0.0)


def turn(fleet: Fleet, seconds: float, until: Callable[[], bool] = lambda: False) -> tuple[float, float]:
    """Lets a fleet do its work for so long; returns (seconds, processor seconds)."""
    begun_s, cpu_s = time.monotonic(), time.process_time()
    while time.monotonic() - begun_s < seconds and not until():
        time.sleep(min(fleet.turn(), 0.5))
    return time.monotonic() - begun_s, time.process_time() - cpu_s


def _memory() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0


def quiet(folder: Path, *, quick: bool) -> Iterator[Result]:
    """Runs in which nothing happens."""
    count, seconds = (50, 10.0) if quick else (200, 60.0)
    listening = Listening()
    with ExitStack() as stack:
        for number in range(count):
            builder = stack.enter_context(RunBuilder(folder / f"run{number:03}"))
            for step in steps(20, number):
                builder.step(step, flush=False)
            builder.flush()
        before = _memory()
        fleet = stack.enter_context(followed(folder, listening))

        def all_read() -> bool:
            return listening.begun_runs == count and all(member.caught_up for member in fleet.members)

        _, cpu_s = turn(fleet, 600.0, all_read)
        yield Result("quiet", f"opening and reading 20 steps, of {count} runs", 1e3 * cpu_s / count, "ms CPU/run")
        yield Result("quiet", "memory of a run that is followed", (_memory() - before) / count / 1e6, "MB")
        for member in fleet.members:
            member.news_s -= _QUIET_S
        turn(fleet, 6.0)
        took_s, cpu_s = turn(fleet, seconds)
        yield Result("quiet", f"one process, {count} quiet runs", 100 * cpu_s / took_s, "% of a core", 5.0)
        yield Result("quiet", "share of each", 100 * cpu_s / took_s / count, "% of a core", 2.0)


def ended(folder: Path, *, quick: bool) -> Iterator[Result]:
    """Runs that ended long ago."""
    count, seconds = (100, 5.0) if quick else (1000, 30.0)
    few = steps(2)
    for number in range(count):
        run = build_run(folder / f"run{number:04}", few)
        evaluator = Evaluator(EvaluatorConfig(run, 0, default_rules()[:1]))
        evaluator.open(lambda _: False)
        evaluator.finish()
    listening = Listening()
    with followed(folder, listening) as fleet:
        _, cpu_s = turn(fleet, 600.0, lambda: fleet.judged_before == count)
        yield Result("ended", f"looking once at {count} runs that were judged", 1e3 * cpu_s / count, "ms CPU/run")
        took_s, cpu_s = turn(fleet, seconds)
        yield Result("ended", f"one process, {count} such runs", 100 * cpu_s / took_s, "% of a core", 5.0)
        if listening.begun_runs:
            raise SystemExit("runs that were judged have been opened again")


def live(folder: Path, *, quick: bool) -> Iterator[Result]:
    """Runs that write twice a second, in each of which a loss becomes NaN at some time."""
    count, seconds = (10, 10.0) if quick else (50, 40.0)
    listening = Listening()
    command = [sys.executable, __file__, "--writer", str(folder), "--count", str(count), "--seconds", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        with followed(folder, listening) as fleet:
            turn(fleet, 600.0, lambda: listening.begun_runs == count)
            before = _memory()
            took_s, cpu_s = turn(fleet, seconds + 60.0, lambda: writer.poll() is not None)
            turn(fleet, 10.0, lambda: len(listening.printed) == count)
        assert writer.stdout is not None
        flushed = json.loads(writer.stdout.read())
    missing = sorted(set(flushed) - set(listening.printed))
    if missing:
        raise SystemExit(f"no finding came of {', '.join(missing)}")
    latency = sorted(listening.printed[name] - at_s for name, at_s in flushed.items())
    yield Result("live", f"flush to finding, {count} runs: median", statistics.median(latency), "s", 0.5)
    yield Result("live", f"flush to finding, {count} runs: worst", latency[-1], "s", 1.0 - _FLUSH_S)
    yield Result("live", "one process", 100 * cpu_s / took_s, "% of a core")
    written = count * _STEPS_PER_FLUSH / _FLUSH_S * took_s
    yield Result("live", "processor time of a step", 1e3 * cpu_s / written, "ms")
    yield Result("live", "growth of its memory", (_memory() - before) / 1e6, "MB")


def _write(folder: Path, count: int, seconds: float) -> None:
    """The training runs of :func:`live`: prints when each one's first NaN was flushed."""
    flushes = int(seconds / _FLUSH_S)
    prepared = steps(64)
    broken = Step({"loss": float("nan"), "learning_rate": 0.1}, prepared[0].statistics)
    at = {number: flushes // 4 + number * (flushes // 2) // count for number in range(count)}
    flushed: dict[str, float] = {}
    begun_s = time.monotonic()
    with ExitStack() as stack:
        builders = [stack.enter_context(RunBuilder(folder / f"run{number:03}")) for number in range(count)]
        for flush in range(flushes):
            for number, builder in enumerate(builders):
                due_s = begun_s + (flush + number / count) * _FLUSH_S
                time.sleep(max(0.0, due_s - time.monotonic()))
                for step in range(_STEPS_PER_FLUSH):
                    sick = flush >= at[number]
                    chosen = broken if sick else prepared[(flush * _STEPS_PER_FLUSH + step) % len(prepared)]
                    builder.step(chosen, flush=False)
                builder.flush()
                if flush == at[number]:
                    flushed[f"run{number:03}"] = time.monotonic()
    print(json.dumps(flushed))


BENCHMARKS: dict[str, Callable[..., Iterator[Result]]] = {"quiet": quiet, "ended": ended, "live": live}


def main() -> None:
    """Measure what the arguments ask for; leaves with status 1 where a target is missed."""
    parser = arguments(__doc__, BENCHMARKS, "fewer runs, in a minute")
    parser.add_argument("--writer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.writer:
        _write(args.writer, args.count, args.seconds)
        return
    measure(parser, args, BENCHMARKS)


if __name__ == "__main__":
    main()
