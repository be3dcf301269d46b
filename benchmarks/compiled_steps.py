"""What watching adds to compiled steps: of Keras on each backend, of loops of TensorFlow and of JAX.

    python benchmarks/compiled_steps.py                              half a minute for each line
    python benchmarks/compiled_steps.py --only jax --seconds 10
    python benchmarks/compiled_steps.py --part calls                 calls at which nothing is due

One training takes turns: its steps are watched, bare, and bare again. Each line has a process of its own, on one core,
and all figures are processor time, so that a busy machine changes them little. README.md in this folder explains them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import watchglass
from configurations import CONFIGURATIONS
from pairs import Comparison, turns
from tables import Table, machine, sentence, versions
from watchglass.capture import attach, loop as loop_of
from watchglass.config import ProfilerConfig

#: Loops of steps, and calls of functions that are none.
LOOPS = ("keras-tensorflow", "keras-jax", "keras-torch", "tensorflow", "tensorflow-eager", "jax")
OTHERS = ("tensorflow-other", "jax-other")
#: Most microseconds that watching may add to a call at which nothing is due; and most that captures at every tenth step
#: may make of a step of so many milliseconds, as a ratio.
CALL_US, RATIO, LARGE_MS = 10.0, 1.05, 20.0
#: Steps of a turn: where one in ten is captured, each turn has one.
_TURN = 10
#: Turns before the clock starts: the steps that are recorded whole, and those at which twins are compared.
_AHEAD = {"calls": 40, "ratios": 6}
PACKAGES = ("watchglass", "tensorflow", "keras", "jax", "flax", "optax", "torch", "numpy")

CALLS = Table(
    [
        ("calls", 17), ("bare µs", 8), ("least", 6), ("median", 7), ("recorder", 8), ("blocks", 6), ("goal", 5),
        ("met", 3),
    ]
)  # fmt: skip
RATIOS = Table(
    [("loop", 17), ("model", 10), ("bare ms", 8), ("ratio", 6), ("95 %", 13), ("control", 7), ("goal", 5), ("met", 3)]
)


def made(loop: str, size: str, watch: Callable[..., None]) -> Any:
    """The training of a loop."""
    import compiled_trainings as trainings

    framework, _, kind = loop.partition("-")
    if framework == "keras":
        return trainings.with_keras(kind, size, watch)
    if framework == "jax":
        return trainings.with_jax(size, watch, other=bool(kind))
    if kind == "other":
        return trainings.with_tape_other(size, watch)
    return trainings.with_tape(size, watch, compiled=not kind)


def recorder_s() -> float:
    """Processor seconds of the recorder's thread."""
    thread = next(each for each in threading.enumerate() if each.name == "watchglass-recorder")
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))


def measure(part: str, loop: str, size: str, seconds: float) -> tuple[Comparison, float]:
    """The comparison of a training, and the microseconds of the recorder's thread for each watched step."""
    name = "t0" if part == "calls" else "statistics-10"
    configuration = next(each for each in CONFIGURATIONS if each.name == name)
    # As under a launcher, which records phases.
    settings = {**configuration.settings, "profiler": ProfilerConfig(enabled=True)}
    found: list[Comparison] = []
    with (
        tempfile.TemporaryDirectory(prefix="compiled-") as folder,
        watchglass.Hook(Path(folder) / "run", strict=True, **settings) as hook,
    ):

        def watch(*names: str) -> None:
            for each in names:
                attach(hook.port, loop_of(each))

        training = made(loop, size, watch)
        for _ in range(_AHEAD[part]):
            training.make(_TURN)
        training.find()
        gc.collect()
        begun_s = recorder_s()
        # Of a call, the time of its thread; of a training that of all threads, with what the recorder does for it.
        clock = time.thread_time if part == "calls" else lambda: time.process_time() - recorder_s()
        taking = turns(
            _TURN, _TURN, half_width=0.0, limit_s=seconds, trim=0.1, clock=clock,
            charged_s=(lambda: 0.0) if part == "calls" else recorder_s, charges_own=True,
            before_turn=lambda which: training.patches.put(watched=which == 0), progress=found.append,
        )  # fmt: skip
        training.run(taking, _TURN)
        training.patches.put(watched=True)
        comparison = found[-1]
        return comparison, (recorder_s() - begun_s) / (comparison.blocks * _TURN) * 1e6


def line(part: str, loop: str, size: str, seconds: float) -> dict[str, Any]:
    """One entry of ``results``."""
    comparison, recorder_us = measure(part, loop, size, seconds)
    about = {"part": part, "loop": loop, "model": size, "blocks": comparison.blocks}
    if part == "calls":
        scale = 1e6 / _TURN
        more = [(watched - (bare + other) / 2) * scale for watched, bare, other in comparison.sums]
        watched, bare, other = (min(each) * scale for each in zip(*comparison.sums, strict=True))
        least = watched - min(bare, other)
        return {
            **about, "bare_us": round(min(bare, other), 1), "least_us": round(least, 1),
            "median_us": round(median(more), 1), "recorder_us": round(recorder_us, 1),
            "goal": CALL_US, "met": least <= CALL_US,
        }  # fmt: skip
    ratio, large = comparison.watched, comparison.bare_ms >= LARGE_MS
    return {
        **about, "bare_ms": round(comparison.bare_ms, 3), "ratio": round(ratio.ratio, 4),
        "ci95": [round(ratio.low, 4), round(ratio.high, 4)], "control": round(comparison.control.ratio, 4),
        "goal": RATIO if large else None, "met": ratio.ratio <= RATIO if large else None,
    }  # fmt: skip


def show(entry: dict[str, Any]) -> str:
    """The row of an entry."""
    met = {None: "", True: "yes", False: "NO"}[entry["met"]]
    if entry["part"] == "calls":
        figures = ("bare_us", "least_us", "median_us", "recorder_us", "blocks")
        return CALLS.row([entry["loop"], *(entry[each] for each in figures), entry["goal"], met])
    low, high = entry["ci95"]
    about = (entry["loop"], entry["model"], entry["bare_ms"], entry["ratio"])
    return RATIOS.row([*about, f"{low:.3f}-{high:.3f}", entry["control"], entry["goal"], met])


def lines(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Part, loop and model of each line."""
    chosen = args.only or (*LOOPS, *OTHERS)
    calls = [("calls", loop, "tiny") for loop in (*LOOPS, *OTHERS) if loop in chosen]
    ratios = [("ratios", loop, size) for loop in LOOPS if loop in chosen for size in ("decoder", "perceptron")]
    found = [] if args.part == "ratios" else calls
    found += [] if args.part == "calls" else ratios
    return [each for each in found if args.model in (None, each[2])]


def apart(options: tuple[str, str, str], seconds: float) -> dict[str, Any] | str:
    """The entry of a line, from a process of its own; else the name of the missing module.

    Raises:
        CalledProcessError: It failed otherwise.
    """
    part, loop, size = options
    environment = {
        "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", **os.environ,
    }  # fmt: skip
    command = [sys.executable, __file__, "--part", part, "--only", loop, "--model", size, "--seconds", str(seconds)]
    ended = subprocess.run([*command, "--here"], env=environment, capture_output=True, text=True, check=False)
    last = (ended.stderr.strip().splitlines() or [""])[-1]
    if last.startswith("ModuleNotFoundError"):
        return last.partition(": ")[2]
    if ended.returncode:
        print(ended.stderr, file=sys.stderr)
    ended.check_returncode()
    found: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Measure what the arguments ask for and print tables or, with ``--json``, one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of each line, beyond its start")
    parser.add_argument("--part", choices=["calls", "ratios"], help="one part")
    parser.add_argument("--only", choices=[*LOOPS, *OTHERS], action="append", help="one loop; may be repeated")
    parser.add_argument("--model", choices=["tiny", "perceptron", "decoder"], help="one model")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before any pool of threads begins
        print(json.dumps(line(*lines(args)[0], args.seconds)))
        return
    results, shown = [], ""
    if not args.json:
        print(f"{sentence(machine())}; {sentence(versions(*PACKAGES))}")
    for part, loop, size in lines(args):
        if part != shown and not args.json:
            print(f"\n{(CALLS if part == 'calls' else RATIOS).head}", flush=True)
        shown = part
        entry = apart((part, loop, size), args.seconds)
        if isinstance(entry, str):
            print(f"skipped {loop}: {entry}", file=sys.stderr if args.json else sys.stdout, flush=True)
            continue
        results.append(entry)
        if not args.json:
            print(show(entry), flush=True)
    if args.json:
        print(json.dumps({"machine": machine(), "versions": versions(*PACKAGES), "results": results}, indent=2))


if __name__ == "__main__":
    main()
