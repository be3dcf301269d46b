"""What the run store costs: bytes of a row, opening and reading, following, a live run, many workers, raw tensors.

    python benchmarks/store.py
    python benchmarks/store.py --quick
    python benchmarks/store.py --json history raw

Runs are simulated (simulated_runs.py) and written by the real encoders and writer into a temporary folder. README.md
in this folder explains the result. Leaves with status 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from figures import Result, arguments, exponent, measure
from simulated_runs import Simulated, Tensors, flush_frames, simulate, with_scalars
from watchglass.evaluate import Follower, replay
from watchglass.records import SCALARS, Mode, StepEnd
from watchglass.run import open_run
from watchglass.store import (
    FrameKind,
    LocalStore,
    RawTensor,
    RunReader,
    SegmentWriter,
    Store,
    compact,
    create_attempt,
    create_run,
    decode_histograms,
    encode_catalog,
    encode_lifecycle,
    encode_rows,
    encode_step_ends,
    table_of,
    write_tensors,
)
from watchglass.tables import JointStep

TENSORS = 300
_NAME = "gradient/blocks.0.linear_0.weight"
_REPEATS = 5


def size(folder: Path, *, quick: bool) -> list[Result]:
    """Bytes on disk of a row of statistics with its histogram, as written and after compaction."""
    steps = 400 if quick else 2000
    store = LocalStore(folder / "run")
    simulate(store, Simulated(steps, TENSORS))
    rows = steps * TENSORS
    frames = [frame for _, _, frame in RunReader(store).poll(1 << 40) if frame.kind == FrameKind.STATISTICS]
    histograms = decode_histograms(frames[0].payload)
    assert histograms is not None
    found = compact(store)
    compacted = sum(entry.size for entry in store.list("compacted") if entry.path.endswith(".parquet"))
    assert found.rows == rows
    return [
        Result("size", "live", sum(len(frame.payload) for frame in frames) / rows, "bytes per row", 120),
        Result("size", "compacted", compacted / rows, "bytes per row", 65),
        Result("size", "bins of a histogram", len(histograms.keys) / len(histograms), "bins"),
    ]


def history(folder: Path, *, quick: bool) -> list[Result]:
    """Opening a run and reading the whole history of one tensor, over the number of captured steps."""
    sizes = (300, 1000, 3000) if quick else (1000, 3000, 10_000)
    times: dict[str, list[float]] = {"live": [], "compacted": []}
    for steps in sizes:
        store = LocalStore(folder / str(steps))
        simulate(store, Simulated(steps, TENSORS))
        read = partial(_read_history, store.location, steps)
        times["live"].append(_fastest(read))
        compact(store)
        times["compacted"].append(_fastest(read))
    peak = _in_a_process("history", folder / str(sizes[-1]))["peak_bytes"]
    peak -= _in_a_process("nothing", folder)["peak_bytes"]
    results = []
    for kind, limit in (("live", 1000), ("compacted", 100)):
        for steps, seconds in zip(sizes, times[kind], strict=True):
            target = limit if steps == 10_000 else None
            results.append(Result("history", f"{kind}, {steps} steps", 1e3 * seconds, "ms", target))
        results.append(Result("history", f"{kind}, exponent", exponent(sizes, times[kind]), "", 1.1))
    results.append(Result("history", "compacted, memory beyond the imports", peak / 1e6, "MB"))
    return results


def _read_history(location: str, steps: int) -> None:
    found, values = open_run(location).tensor(_NAME).reductions("l2")
    assert len(found) == len(values) == steps


def follower(folder: Path, *, quick: bool) -> list[Result]:
    """What a follower takes for each new captured step, without rules, and for a poll that finds nothing."""
    store, count = LocalStore(folder / "run"), 20 if quick else 100
    create_run(store, command=[])
    create_attempt(store, "")
    tensors, writer, follower = Tensors(TENSORS), SegmentWriter(store, 0, "worker_0"), Follower(store)
    writer.write([encode_lifecycle({"event": "joined", "worker": "worker_0", "time_ns": 0, "wall_ns": 0})])
    writer.write([encode_catalog(tensors.catalog())])
    spent = []
    for step in range(count):
        writer.write(flush_frames(tensors, [step], np.ones(1)))
        before = time.thread_time()
        views = [view for step in follower.poll() if isinstance(step, JointStep) for view in step.views]
        assert [len(view.statistics()) for view in views] == [TENSORS]
        spent.append(time.thread_time() - before)
    quiet = []
    for _ in range(20):
        before = time.thread_time()
        for _ in range(100):
            assert not list(follower.poll())
        quiet.append((time.thread_time() - before) / 100)
    return [
        Result("follower", "per step of 300 tensors", 1e3 * statistics.median(spent), "ms", 5),
        Result("follower", "per quiet poll", 1e6 * statistics.median(quiet), "µs", 50),
    ]


def live(folder: Path, *, quick: bool) -> list[Result]:
    """What a reader of a run that goes on takes after ten more steps, and the memory that the open run has."""
    count = 10_000 if quick else 100_000
    course = _Course(LocalStore(folder / "run"))
    course.write(count)
    memory = _in_a_process("live", folder / "run")
    run = open_run(folder / "run")
    asked: dict[str, Callable[[], Any]] = {
        "refresh": run.refresh, "loss": lambda: run.scalars("loss"), "stretches": run.stretches,
    }  # fmt: skip
    spent: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(20):
        course.write(10)
        for name, ask in asked.items():
            before = time.process_time()
            ask()
            spent[name].append(time.process_time() - before)
    targets = {} if quick else {"refresh": 5, "stretches": 20}
    return [
        *(
            Result(
                "live", f"{name}, ten new steps on {count}", 1e3 * statistics.median(times[1:]), "ms", targets.get(name)
            )
            for name, times in spent.items()
        ),
        Result("live", "objects of the open run", memory["traced_bytes"] / 1e6, "MB", None if quick else 45),
        Result("live", "memory of the open run", memory["anonymous_bytes"] / 1e6, "MB"),
    ]


class _Course:
    """One worker without statistics: three scalars a step, five steps of evaluation after each thousand."""

    def __init__(self, store: Store) -> None:
        create_run(store, command=[])
        create_attempt(store, "")
        self._tensors, self._step, self._ends = Tensors(0), 0, 0
        self._writer = SegmentWriter(store, 0, "worker_0")
        self._writer.write([encode_lifecycle({"event": "joined", "worker": "worker_0", "time_ns": 0, "wall_ns": 0})])
        self._writer.write([encode_catalog(with_scalars(self._tensors.catalog()))])

    def write(self, count: int) -> None:
        """Write so many more TRAIN steps, forty to a flush."""
        for first in range(self._step, self._step + count, 40):
            self._flush(range(first, min(first + 40, self._step + count)))
        self._step += count

    def _flush(self, steps: range) -> None:
        ends = []
        for step in steps:
            modes = [Mode.TRAIN] + [Mode.EVAL] * (5 if step % 1000 == 999 else 0)
            for place, mode in enumerate(modes):
                number = self._ends
                self._ends += 1
                mode_step = step if mode is Mode.TRAIN else step // 1000 * 5 + place - 1
                ends.append(StepEnd(number, mode, mode_step, step, 10**7 * number, 10**7 * (number + 1)))
        rows = [
            (end.global_step, tensor, 32, 1 / (1 + end.train_step))
            for end in ends
            for tensor in range(3 if end.mode is Mode.TRAIN else 1)
        ]
        self._writer.write([encode_rows(SCALARS, table_of(SCALARS, rows)), encode_step_ends(ends)])


def workers(folder: Path, *, quick: bool) -> list[Result]:
    """A run of 1,024 workers of 100 tensors and 50 steps: written, opened, merged and checked, in one process."""
    count = 64 if quick else 1024
    found = _in_a_process("workers", folder / "run", count)
    whole = count == 1024
    return [
        *(Result("workers", f"{count}: {part}", seconds, "s") for part, seconds in found["seconds"].items()),
        Result("workers", f"{count}: all", sum(found["seconds"].values()), "s", 60 if whole else None),
        Result("workers", f"{count}: memory at most", found["peak_bytes"] / 2**30, "GiB", 2 if whole else None),
    ]


def _many_workers(path: Path, count: int) -> dict[str, float]:
    seconds: dict[str, float] = {}
    start = time.monotonic()
    simulate(LocalStore(path), Simulated(50, 100, count), kinds=8)
    seconds["written"] = time.monotonic() - start
    start = time.monotonic()
    run = open_run(str(path))
    assert len(run.workers) == count
    seconds["opened"] = time.monotonic() - start
    start = time.monotonic()
    merged = run.statistics("gradient", merged=True).to_arrow()
    assert merged.num_rows == 50 * 34
    seconds["merged"] = time.monotonic() - start
    del run, merged
    start = time.monotonic()
    assert replay(str(path)).train_steps == 50
    seconds["checked"] = time.monotonic() - start
    return seconds


def raw(folder: Path, *, quick: bool) -> list[Result]:
    """Writing raw tensors against plain file calls with the same bytes, in pairs; mapping them back."""
    arrays = [np.random.default_rng(n).normal(size=(512, 512)).astype(np.float32) for n in range(64)]
    store, ratios, pairs = LocalStore(folder / "run"), [], 10 if quick else 40
    for pair in range(pairs):
        first = pair % 2
        times = {}
        for way in (first, 1 - first):
            path = folder / f"plain-{pair}"
            before = time.perf_counter()
            if way:
                write_tensors(store, 0, "worker_0", pair, [(pair, RawTensor(n, a)) for n, a in enumerate(arrays)])
            else:
                with path.open("wb", buffering=0) as file:
                    for array in arrays:
                        file.write(array.data)
            times[way] = time.perf_counter() - before
            written = folder / "run" / f"attempts/0000/tensors/worker_0-{pair:08}.safetensors"
            (written if way else path).unlink()
        ratios.append(times[0] / times[1])
    return [
        Result("raw", "speed of writing, plain file calls are 1", statistics.median(ratios), "", 0.7, least=True),
        *_zero_copy(folder / "mapped", arrays),
    ]


def _zero_copy(folder: Path, arrays: list[Any]) -> list[Result]:
    store = LocalStore(folder)
    rows = write_tensors(store, 0, "worker_0", 0, [(0, RawTensor(n, a)) for n, a in enumerate(arrays)])
    before = _memory("RssAnon")
    whole = memoryview(store.map(rows[0]["file"]))
    assert whole.nbytes > sum(array.nbytes for array in arrays)
    touched = int(np.frombuffer(whole, np.uint8)[::4096].sum())
    assert touched
    copied = max(0, _memory("RssAnon") - before)
    return [Result("raw", "mapped and read, of it copied", copied / whole.nbytes, "", 0.05)]


def _memory(name: str) -> int:
    """Bytes of this process: ``VmHWM`` the most it ever had, ``RssAnon`` what is no mapped file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


BENCHMARKS: dict[str, Callable[..., list[Result]]] = {
    "size": size, "history": history, "follower": follower, "live": live, "workers": workers, "raw": raw,
}  # fmt: skip


def _fastest(call: Callable[[], None]) -> float:
    """Seconds of the fastest of several calls; the first, which imports, does not count."""
    call()
    times = []
    for _ in range(_REPEATS):
        gc.collect()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _in_a_process(part: str, path: Path, count: int = 0) -> dict[str, Any]:
    """A part in a separate process, with the most memory that it ever had."""
    command = [sys.executable, __file__, "--part", part, "--path", str(path), "--count", str(count)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(finished.stdout))


def _part(part: str, path: Path, count: int) -> dict[str, Any]:
    seconds: dict[str, float] = {}
    more: dict[str, int] = {}
    if part == "workers":
        seconds = _many_workers(path, count)
    elif part == "live":
        more = _open_run(path)
    elif part == "history":
        open_run(str(path)).tensor(_NAME).reductions("l2")
    # Not ru_maxrss: that of a new process begins with its parent's.
    return {"seconds": seconds, "peak_bytes": _memory("VmHWM"), **more}


def _open_run(path: Path) -> dict[str, int]:
    """Memory of a run whose steps, scalars and stretches were requested: all of it, and that of Python's objects."""
    found = {}
    open_run(path).stretches()  # what is imported does not count
    for traced in (False, True):
        gc.collect()
        before = _memory("RssAnon")
        if traced:
            tracemalloc.start()
        run = open_run(path)
        run.steps(), run.scalars("loss"), run.stretches()
        gc.collect()
        found["traced_bytes" if traced else "anonymous_bytes"] = (
            tracemalloc.get_traced_memory()[0] if traced else _memory("RssAnon") - before
        )
        del run
    return found


def main() -> None:
    """Measure what the arguments ask for; leaves with status 1 where a target is missed."""
    parser = arguments(__doc__, BENCHMARKS, "smaller runs, in a minute")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(_part(args.part, args.path, args.count)))
        return
    measure(parser, args, BENCHMARKS)


if __name__ == "__main__":
    main()
