"""What evaluating rules costs: rows per second, time to a finding, growth with the run's length, a quiet run.

    python benchmarks/rules.py
    python benchmarks/rules.py --quick
    python benchmarks/rules.py --json speed quiet

Runs are simulated (simulated_runs.py) and written by the real encoders and writer into a temporary folder. README.md
in this folder explains the result. Leaves with status 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from figures import Result, arguments, exponent, measure
from growing_runs import Run, write_run
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.evaluate import Follower
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.engine.watchdog import Watchdog
from watchglass.rules import default_rules
from watchglass.store import FrameKind, LocalStore, RunReader, Store
from watchglass.tables import WorkerTables

_FOLLOWER, _READING = "follower, from frames to views", "reading and decoding alone"
#: Steps after which memory and cost per step count.
_SETTLED = 500
#: A rule that finds something new at every step, so that each step has a finding to wait for.
_TELLTALE = '''
from watchglass import Needs, Rule, Severity


class Telltale(Rule):
    """Finds something new at every step."""

    needs = (Needs(scalars=("loss",)),)

    def check(self, view):
        yield self.finding(
            view, severity=Severity.INFO, subject=f"step {view.mode_step}", message=f"reported step {view.mode_step}."
        )
'''


# Rows per second


def speed(folder: Path, *, quick: bool) -> list[Result]:
    """Rows per second of one core through the default rules, from stored frames to findings; and where time goes."""
    results = []
    for tensors, steps, target in ((3000, 120 if quick else 400, 1e6), (300, 400 if quick else 2000, 2e5)):
        for sick in (False, True):
            store = write_run(folder / f"{tensors}-{sick}", tensors, steps, 8, sick=sick)
            seconds = _least(lambda store=store: _evaluate(store), 3 if quick else 9)  # type: ignore[misc]
            name, rows = f"{tensors} tensors", tensors * steps
            if sick:
                results.append(Result("speed", f"{name}, findings at every step", rows / seconds, "rows/s"))
                continue
            results.append(Result("speed", name, rows / seconds, "rows/s", target, least=True))
            shares = _shares(store, 2 if quick else 5)
            whole = sum(spent for part, spent in shares.items() if part != _READING)
            results += [
                Result("speed", f"{name}: {part}", 1e6 * spent / steps, "µs per step") for part, spent in shares.items()
            ]
            results.append(Result("speed", f"{name}: rules' share", 1 - _outside(shares) / whole, ""))
    return [*results, Result("speed", "asking a rule that does nothing, in time", 1e6 * _asking_s(), "µs")]


def _asking_s() -> float:
    """Seconds that a call costs which is ended where it takes too long."""
    watchdog, calls = Watchdog(30.0), 10_000
    begin = time.process_time()
    for _ in range(calls):
        watchdog.call(object)
    spent_s = time.process_time() - begin
    watchdog.close()
    return spent_s / calls


def _evaluate(store: Store) -> None:
    follower, engine = Follower(store), Engine(default_rules())
    for moments in (follower.read_all(), follower.ends()):
        for moment in moments:
            engine.show(moment)
    assert len(engine.statuses()) == len(default_rules())


def _outside(shares: dict[str, float]) -> float:
    return shares[_FOLLOWER]


def _shares(store: Store, repeats: int) -> dict[str, float]:
    """Seconds of processor time in each part: the least of some repeats."""
    passes = [_parts(store) for _ in range(repeats)]
    return {part: min(spent[part] for spent in passes) for part in passes[0]}


def _parts(store: Store) -> dict[str, float]:
    spent = {_FOLLOWER: 0.0, _READING: _reading(store)}
    # An engine for each rule. What rules share (columns, selections) is paid by the first that asks.
    engines = {spec.name: Engine([spec]) for spec in default_rules()}
    spent.update(dict.fromkeys(engines, 0.0))
    follower, clock = Follower(store), time.process_time
    before = clock()
    while True:
        frames = follower.frames
        for moment in follower.poll(full=True):
            now = clock()
            spent[_FOLLOWER] += now - before
            for name, engine in engines.items():
                before, _ = now, engine.show(moment)
                now = clock()
                spent[name] += now - before
            before = now
        if follower.frames == frames:
            break
    return spent


def _reading(store: Store) -> float:
    """Seconds for frames and the rows of each step alone."""
    before = time.process_time()
    reader, tables = RunReader(store, leave=(FrameKind.STATISTICS,)), WorkerTables(store)
    while True:
        frames = [frame for *_, frame in reader.poll(16 << 20, full=True)]
        found = [(frame.kind, tables.ingest(frame)) for frame in frames]
        steps = [step for kind, rows in found if kind == FrameKind.STEP_ENDS for step in rows["global_step"].tolist()]
        for step in steps:
            tables.statistics.at(step)
        if not steps:
            break
        tables.forget(steps[-1])
    return time.process_time() - before


# From a step to a finding


def latency(folder: Path, *, quick: bool) -> list[Result]:
    """From a captured step that was written to a line about it from an evaluator process that follows the run."""
    rule = folder / "telltale.py"
    rule.write_text(_TELLTALE, encoding="utf-8")
    run = Run(LocalStore(folder / "run"), 300)
    run.write(1)
    rules = (*default_rules(), RuleSpec(f"{rule}:Telltale"))
    chance, waits = np.random.default_rng(0), []
    with _Evaluator(folder / "run", rules) as evaluator:
        evaluator.wait_for("reported step 0.", 60)
        for step in range(1, 20 if quick else 100):  # an evaluator keeps a hundred findings of a rule
            time.sleep(chance.uniform(0.1, 0.3))
            run.write(1)
            begin = time.monotonic()
            evaluator.wait_for(f"reported step {step}.", 60)
            waits.append(time.monotonic() - begin)
        run.close()
    return [
        Result("latency", "step written to finding, median", 1e3 * statistics.median(waits), "ms", 1000),
        Result("latency", f"step written to finding, worst of {len(waits)}", 1e3 * max(waits), "ms", 1000),
    ]


class _Evaluator:
    """An evaluator process that follows a training run, with its lifeline."""

    def __init__(self, run: Path, rules: Sequence[RuleSpec]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "watchglass.evaluate"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # the verdict, which --json would mix with the figures
            stderr=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(EvaluatorConfig(str(run), 0, tuple(rules)).to_line().encode() + b"\n")
        self._process.stdin.flush()
        self._said = b""

    def __enter__(self) -> _Evaluator:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stderr.close()

    @property
    def processor_s(self) -> float:
        """Processor time so far, in seconds."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the evaluator has ended with status {self._process.returncode}")
        values = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")

    def wait_for(self, text: str, seconds: float) -> None:
        """Until it has said this."""
        assert self._process.stderr is not None
        give_up_s = time.monotonic() + seconds
        while text.encode() not in self._said:
            if not select.select([self._process.stderr], [], [], max(0.0, give_up_s - time.monotonic()))[0]:
                raise TimeoutError(f"the evaluator did not say {text!r} in {seconds:g} s but: {self._said[-2000:]!r}")
            said = os.read(self._process.stderr.fileno(), 1 << 16)
            if not said:
                raise RuntimeError(f"the evaluator has ended; it said: {self._said[-2000:]!r}")
            self._said = self._said[-4096:] + said


# Growth with the length of a run


def growth(folder: Path, *, quick: bool) -> list[Result]:
    """Processor time per step and memory over the length of a run, each length in a separate process."""
    lengths = (1000, 3000, 10_000) if quick else (1000, 10_000, 100_000)
    costs, memory = [], []
    results = []
    for steps in lengths:
        write_run(folder / str(steps), 6, steps, 40)
        found = _in_a_process("growth", folder / str(steps))
        costs.append(found["seconds_per_step"])
        results.append(Result("growth", f"{steps} steps of 6 tensors", 1e6 * costs[-1], "µs per step"))
        beyond, grown = found["beyond_imports_bytes"] / 2**20, found["grown_bytes"] / 2**20
        # Series of scalars are kept for 4096 steps, and read ahead of what is evaluated is little.
        memory.append(Result("growth", f"{steps} steps, memory beyond the imports", beyond, "MiB", 64))
        memory.append(Result("growth", f"{steps} steps, grown after step {_SETTLED}", grown, "MiB"))
    results.append(Result("growth", "exponent of the cost per step", exponent(lengths, costs), "", 0.1))
    return [*results, *memory]


def _grow(path: Path) -> dict[str, float]:
    """Evaluates a run in pieces, as a follower does during the run. The first steps, which import, do not count."""
    follower, engine = Follower(LocalStore(path)), Engine(default_rules())
    imported, settled, steps, begin = _memory("VmRSS"), 0, 0, 0.0
    while True:
        before = follower.frames
        for moment in follower.poll(max_bytes=1 << 18):
            engine.show(moment)
            steps += 1
            if steps == _SETTLED:
                settled, begin = _memory("VmRSS"), time.process_time()
        if follower.frames == before:
            break
    seconds = (time.process_time() - begin) / (steps - _SETTLED)
    return {
        "seconds_per_step": seconds, "beyond_imports_bytes": _memory("VmHWM") - imported,
        "grown_bytes": _memory("VmRSS") - settled,
    }  # fmt: skip


# A quiet run


def quiet(folder: Path, *, quick: bool) -> list[Result]:
    """Share of a core that an evaluator's process takes of a run that records nothing, and one of scalars only."""
    seconds = 5.0 if quick else 30.0
    results = []
    for name, steps in (("nothing is recorded", 0), ("a step of scalars 10 times a second", 5)):
        run = Run(LocalStore(folder / str(steps)), 0)
        run.write(1)
        with _Evaluator(folder / str(steps), default_rules()) as evaluator:
            _flushes(run, 3.0, steps)
            assert run.store.list("journal"), "the evaluator has not begun in 3 s"
            before, begin = evaluator.processor_s, time.monotonic()
            _flushes(run, seconds, steps)
            share = (evaluator.processor_s - before) / (time.monotonic() - begin)
            run.close()
        results.append(Result("quiet", name, 100 * share, "% of a core", 2))
    return results


def _flushes(run: Run, seconds: float, steps: int) -> None:
    """Twice a second, as a recorder writes."""
    end_s = time.monotonic() + seconds
    while (left := end_s - time.monotonic()) > 0:
        if steps:
            run.write(steps)
        time.sleep(min(0.5, left))


BENCHMARKS: dict[str, Callable[..., list[Result]]] = {
    "speed": speed, "latency": latency, "growth": growth, "quiet": quiet,
}  # fmt: skip


def _least(call: Callable[[], None], repeats: int) -> float:
    """Processor seconds of the cheapest of several calls; the first, which imports, does not count."""
    call()
    return min(_timed(call, repeats))


def _timed(call: Callable[[], None], repeats: int) -> Iterator[float]:
    for _ in range(repeats):
        gc.collect()
        before = time.process_time()
        call()
        yield time.process_time() - before


def _memory(name: str) -> int:
    """Bytes of this process: ``VmRSS`` now, ``VmHWM`` the most it ever had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def _in_a_process(part: str, path: Path) -> dict[str, Any]:
    """A part in a separate process."""
    command = [sys.executable, __file__, "--part", part, "--path", str(path)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(finished.stdout))


def main() -> None:
    """Measure what the arguments ask for; leaves with status 1 where a target is missed."""
    parser = arguments(__doc__, BENCHMARKS, "shorter runs, in a minute")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(_grow(args.path)))
        return
    measure(parser, args, BENCHMARKS)


if __name__ == "__main__":
    main()
