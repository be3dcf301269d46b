"""What spreading an evaluation brings: on this machine from one to two cores, and simulated up to 1,024.

    python benchmarks/scale.py
    python benchmarks/scale.py --quick
    python benchmarks/scale.py --json

The first table evaluates one run by the local engine and by Ray with one core and with two. The second measures what a
part costs (its bytes, opening the run, a request and its answer, putting findings together), and then lets parts of a
run of 1,024 workers be worked on by any number of cores, one event after the other. README.md says how to read it.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from simulated_runs import Simulated, simulate
from tables import Table, machine, sentence, versions
from watchglass.config import EvaluatorConfig
from watchglass.evaluate import PartialEvaluation, merge, replay_part
from watchglass.evaluate.engine.rule_status import RuleFacts, WorkerFacts
from watchglass.evaluate.scaling.cluster import cluster
from watchglass.evaluate.scaling.contents import RunContents, contents_of
from watchglass.evaluate.scaling.plan import Part, plan
from watchglass.evaluate.scaling.spreading import ask
from watchglass.evaluate.scaling.tasks import answer, read_answer, request_of
from watchglass.records import Finding, Mode, Severity
from watchglass.rules import default_rules
from watchglass.store import LocalStore

_T = TypeVar("_T")
#: Tensors of each step, and what a worker of the simulated cluster has written: an hour of captures every 128 steps.
TENSORS, STEPS, WORKERS = 300, 200, 1024
#: Seconds of one request to an object store, from first to last byte of a small object, and bytes per second of one
#: reader: what S3 promises within a region. A reader has so many requests under way.
REQUEST_S, BANDWIDTH, AT_ONCE = 0.03, 90e6, 16
#: What a part requests one after the other, except its segments: manifest, generations, attempts, journal, claims.
PART_REQUESTS = 8
#: Names on a page of a listing.
PAGE = 1000
#: A worker flushes once a minute where there are a thousand: so many steps share an object there.
STEPS_PER_OBJECT = 8
CORES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
#: A curve has its knee where a core does less than this share of what the first one did.
KNEE = 0.8
REPEATS = 3


@dataclass(frozen=True)
class Costs:
    """What was measured, in seconds of one core.

    Attributes:
        per_byte_s: Reading and evaluating a byte of a worker.
        reading_share: Share of it that is left with no rule but the cheapest.
        open_s: A part that finds nothing to read: the run opened, everything that the run has listed.
        worker_bytes: Bytes of a worker.
        request_s: The driver makes a request, hands it to Ray, and reads the answer.
        merge_part_s: Putting one more part together.
        merge_finding_s: Putting one more finding together, its reading included.
        list_s: The driver lists the run for its plan.
    """

    per_byte_s: float
    reading_share: float
    open_s: float
    worker_bytes: int
    request_s: float
    merge_part_s: float
    merge_finding_s: float
    list_s: float


@dataclass(frozen=True)
class Point:
    """A simulated evaluation.

    Attributes:
        cores: Cores that work on parts; the driver has one of its own.
        parts: Parts.
        seconds: From the listing to the last finding.
        speedup: Over one core.
        largest_s: The largest part.
        driver_s: What the driver did one after another: requests, answers, putting together.
        limit: What the end waited for.
    """

    cores: int
    parts: int
    seconds: float
    speedup: float
    largest_s: float
    driver_s: float
    limit: str


def fastest(work: Callable[[], _T], repeats: int = REPEATS) -> tuple[float, _T]:
    """The least processor time of this process over some repeats, in seconds, and what came of the last."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        found = work()
        times.append(time.process_time() - begin)
    return min(times), found


def schedule(
    parts: Sequence[Part], cores: int, costs: Costs, *, objects: Callable[[Part], int], listing_s: float = 0.0
) -> Point:
    """Works on parts with some cores, as :func:`ask` hands them out: in order, each to the first core that is free.

    Args:
        parts: From a plan.
        cores: Cores.
        costs: What was measured.
        objects: Objects that a part reads from an object store; 0 for a local folder.
        listing_s: Seconds that the driver's listing waits for its store, before the first part.
    """
    free = [0.0] * cores
    driver = costs.list_s + listing_s
    ends: list[float] = []
    largest = 0.0
    for part in parts:
        driver += costs.request_s  # one driver makes all requests, and takes all answers
        requests = objects(part)
        stored = math.ceil(requests / AT_ONCE) * REQUEST_S + part.bytes / BANDWIDTH if requests else 0.0
        seconds = costs.open_s + stored + part.bytes * costs.per_byte_s
        largest = max(largest, seconds)
        end = max(heapq.heappop(free), driver) + seconds
        ends.append(end)
        heapq.heappush(free, end)
    last = max(ends)
    together = len(parts) * costs.merge_part_s
    work = sum(costs.open_s + part.bytes * costs.per_byte_s for part in parts) / cores
    limits = {"cores": work, "the largest part": largest, "the driver": driver + together}
    driver_s = len(parts) * costs.request_s + together + costs.list_s + listing_s
    return Point(cores, len(parts), last + together, 0.0, largest, driver_s, max(limits, key=limits.__getitem__))


def curve(costs: Costs, *, workers: int = WORKERS, on_objects: bool, rules: int) -> list[Point]:
    """Evaluations of a run of many workers with ever more cores."""
    contents = RunContents("run", {f"worker_{rank}": costs.worker_bytes for rank in range(workers)}, 0)
    each = math.ceil(STEPS / STEPS_PER_OBJECT)
    # The driver lists the run, a page after the other, and hands out the names.
    listing_s = REQUEST_S * (workers * each // PAGE + 1)

    def objects(part: Part) -> int:
        return each * len(part.workers or contents.workers) + PART_REQUESTS * AT_ONCE

    found = []
    for cores in CORES:
        parts = plan([contents], rules, cores, reading_share=costs.reading_share)
        if on_objects:
            found.append(schedule(parts, cores, costs, objects=objects, listing_s=listing_s))
        else:
            found.append(schedule(parts, cores, costs, objects=lambda _: 0))
    return [replace(point, speedup=found[0].seconds / point.seconds) for point in found]


def knee(points: Sequence[Point]) -> Point:
    """The most cores of which each still does its share."""
    return [point for point in points if point.speedup >= KNEE * point.cores][-1]


def measured(folder: Path, *, quick: bool) -> Costs:
    """What parts cost here, on one core."""
    steps = STEPS // (8 if quick else 2)
    store = LocalStore(folder / "one")
    simulate(store, Simulated(steps, TENSORS, steps_per_flush=STEPS_PER_OBJECT))
    config = EvaluatorConfig(str(folder / "one"), None, default_rules())
    size = contents_of(store, "one").bytes
    replay_part(store, config)  # what is imported is imported
    all_rules_s, _ = fastest(lambda: replay_part(store, config))
    cheapest = [n for n, rule in enumerate(config.rules) if rule.name == "LossNotDecreasing"]
    reading_s, _ = fastest(lambda: replay_part(store, config, rules=cheapest))

    many = LocalStore(folder / "many")
    workers = 64 if quick else WORKERS
    simulate(many, Simulated(2, 4, workers=workers, steps_per_flush=1), kinds=1)
    absent = ["worker_99999"]
    begin_s, _ = fastest(lambda: replay_part(store, config, workers=absent))
    listing_s, _ = fastest(lambda: replay_part(many, replace(config, run=str(folder / "many")), workers=absent))
    list_s, _ = fastest(lambda: contents_of(many, "many"))

    request_s = _request_s(config, 50 if quick else 400)
    merge_s = {count: _merge_s(config, 128, count) for count in (1, 41)}
    per_finding = (merge_s[41] - merge_s[1]) / (128 * 40)
    return Costs(
        per_byte_s=all_rules_s / size,
        reading_share=min(1.0, reading_s / all_rules_s),
        # Rules are built whatever the size of the run; what is listed grows with it.
        open_s=begin_s + max(0.0, listing_s - begin_s) * WORKERS / workers,
        worker_bytes=round(size * STEPS / steps),
        request_s=request_s,
        merge_part_s=max(0.0, merge_s[1] / 128 - per_finding),
        merge_finding_s=per_finding,
        list_s=list_s * WORKERS / workers,
    )


def _request_s(config: EvaluatorConfig, count: int) -> float:
    """Processor time of the driver for a request that is answered at once."""
    request = request_of(Part(config.run, ("worker_0",), None, 1), config, {})
    refused = json.dumps({**json.loads(request), "version": "none"})
    with cluster(cores=1) as connected:
        list(ask(connected, [refused], ["first"]))
        begin = time.process_time()
        for _ in range(count):
            request_of(Part(config.run, ("worker_0",), None, 1), config, {})
        for _ in ask(connected, [refused] * count, ["one"] * count):
            pass
        return (time.process_time() - begin) / count


def _merge_s(config: EvaluatorConfig, parts: int, findings: int) -> float:
    """Reading the answers of some parts of eight workers, with so many findings each, and putting them together."""
    texts = [_answer(config, part, findings) for part in range(parts)]

    def together() -> int:
        return len(merge([read_answer(text) for text in texts], config.rules).findings)

    seconds, found = fastest(together)
    assert found == parts * findings
    return seconds


def _answer(config: EvaluatorConfig, part: int, findings: int) -> str:
    rules = {}
    for number, rule in enumerate(config.rules):
        facts = []
        for rank in range(part * 8, part * 8 + 8):
            mine = rank == part * 8 and number == 0
            rows = tuple(((0, 0, n), _finding(rule.name, f"worker_{rank}", n)) for n in range(findings if mine else 0))
            facts.append(WorkerFacts(0, f"worker_{rank}", rows))
        rules[number] = RuleFacts(rule.name, tuple(facts), tuple(facts))
    steps = {(0, f"worker_{rank}"): STEPS for rank in range(part * 8, part * 8 + 8)}
    return json.dumps({"cpu_s": 0.0, "partial": PartialEvaluation("run", rules, steps, 0).to_json()})


def _finding(rule: str, worker: str, step: int) -> Finding:
    tensor = f"gradient/blocks.{step}.linear.weight"
    return Finding(
        id=f"{step:012x}", rule=rule, severity=Severity.WARNING, step=step, last_step=step, count=1, mode=Mode.TRAIN,
        worker=worker, tensors=(tensor,), value=0.0, limit=1.0, message=f"the gradient of {tensor} vanishes",
        causes=("learning_rate_too_high",), what_to_try=("Lower the learning rate",), attempt=0, global_step=step,
        evidence={"subject": tensor, "symptoms": ["vanishing"]},
    )  # fmt: skip


@dataclass(frozen=True)
class Scaled:
    """One evaluation on this machine.

    Attributes:
        engine: Local, or Ray with so many cores.
        seconds: By the clock, without starting and ending a cluster.
        cpu_s: Processor time of what was evaluated.
        speedup: Over the local engine, by the clock.
        efficiency: Processor time of the local engine over that of this one: 1 where dividing costs nothing.
        start_s: Starting a cluster of one's own and ending it.
    """

    engine: str
    seconds: float
    cpu_s: float
    speedup: float
    efficiency: float
    start_s: float


def on_this_machine(folder: Path, *, quick: bool) -> list[Scaled]:
    """One run of eight workers by the local engine, and by Ray with one core and with two."""
    simulate(LocalStore(folder / "run"), Simulated(12 if quick else 240, TENSORS, workers=8), kinds=4)
    location = str(folder / "run")
    code = f"import scale; scale.local({location!r})"
    own = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, check=True)
    seconds, cpu_s = json.loads(own.stdout)
    found = [Scaled("local", seconds, cpu_s, 1.0, 1.0, 0.0)]
    config = EvaluatorConfig(location, None, default_rules())
    for cores in (1, 2):
        begin = time.monotonic()
        with cluster(cores=cores) as connected:
            parts = plan([contents_of(LocalStore(location), location)], len(config.rules), 2)
            requests, names = [request_of(part, config, {}) for part in parts], [part.run for part in parts]
            first = [request_of(parts[-1], config, {})] * cores
            list(ask(connected, first, ["warm"] * cores))  # imports are made
            begun = time.monotonic()
            spent = sum(json.loads(reply)["cpu_s"] for _, reply in ask(connected, requests, names))
            took = time.monotonic() - begun
        start_s = time.monotonic() - begin - took
        name = f"Ray, {cores} core{'s' * (cores > 1)}"
        found.append(Scaled(name, took, spent, seconds / took, cpu_s / spent, start_s))
    return found


def local(location: str) -> None:
    """Prints the seconds and the processor time of a replay in this process, after a first one for what is imported."""
    config = EvaluatorConfig(location, None, default_rules())
    answer(request_of(Part(location, ("worker_0",), None, 0), config, {}))
    begin, spent = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    merge([replay_part(location, config)], config.rules)
    now = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = now.ru_utime + now.ru_stime - spent.ru_utime - spent.ru_stime
    print(json.dumps([time.monotonic() - begin, cpu_s]))


HERE = Table([("engine", 12), ("seconds", 8), ("processor s", 11), ("speed-up", 8), ("efficiency", 10), ("start s", 7)])
THERE = Table(
    [("store", 8), ("cores", 5), ("parts", 5), ("seconds", 8), ("speed-up", 8), ("efficiency", 10),
     ("largest part s", 14), ("driver s", 8), ("limit", 16)]
)  # fmt: skip


def main() -> None:
    """Measure, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller runs, in half a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    args = parser.parse_args()
    about = {"machine": machine(), "versions": versions("watchglass", "numpy", "pyarrow", "ray"), "quick": args.quick}
    with tempfile.TemporaryDirectory(prefix="scale-", dir=os.environ.get("BENCHMARK_FOLDER")) as folder:
        scaled = on_this_machine(Path(folder), quick=args.quick)
        costs = measured(Path(folder), quick=args.quick)
    rules = len(default_rules())
    curves = {name: curve(costs, on_objects=name == "objects", rules=rules) for name in ("folder", "objects")}
    if args.json:
        simulated = {
            name: {"points": [asdict(point) for point in points], "knee": knee(points).cores}
            for name, points in curves.items()
        }
        here = [asdict(each) for each in scaled]
        print(json.dumps({**about, "here": here, "costs": asdict(costs), "simulated": simulated}, indent=2))
        return
    print(f"{sentence(about['machine'])}; {sentence(about['versions'])}\n")
    _print_here(scaled)
    _print_there(costs, curves)


def _print_here(scaled: Sequence[Scaled]) -> None:
    print(f"8 workers, {TENSORS} tensors, evaluated on this machine:\n\n{HERE.head}")
    for each in scaled:
        row = [each.engine, f"{each.seconds:.2f}", f"{each.cpu_s:.2f}", f"{each.speedup:.2f}", f"{each.efficiency:.2f}"]
        print(HERE.row([*row, f"{each.start_s:.1f}"]))


def _print_there(costs: Costs, curves: dict[str, list[Point]]) -> None:
    print(
        f"\nMeasured on one core: {1e-6 / costs.per_byte_s:.1f} MB evaluated per second, of which reading takes "
        f"{costs.reading_share:.0%}; {costs.worker_bytes / 1e6:.1f} MB per worker of {STEPS} captured steps; "
        f"{1e3 * costs.open_s:.0f} ms to open a run of {WORKERS:,} workers; the driver takes {1e3 * costs.list_s:.0f} "
        f"ms to list it, {1e3 * costs.request_s:.1f} ms per request, {1e3 * costs.merge_part_s:.2f} ms to put a part "
        f"together and {1e6 * costs.merge_finding_s:.0f} us for each finding.\n\n{WORKERS:,} workers, simulated:\n\n"
        f"{THERE.head}"
    )
    for name, points in curves.items():
        for point in points:
            row = [name, point.cores, point.parts, f"{point.seconds:.1f}", f"{point.speedup:.1f}"]
            rest = [
                f"{point.speedup / point.cores:.2f}",
                f"{point.largest_s:.2f}",
                f"{point.driver_s:.2f}",
                point.limit,
            ]
            print(THERE.row([*row, *rest]))
    for name, points in curves.items():
        at = knee(points)
        print(f"\n{name}: the knee is at {at.cores} cores, {at.seconds:.1f} s; then {points[-1].limit} sets the end.")


if __name__ == "__main__":
    main()
