"""MemoryLeak in numbers, and in runs that keep graphs or Python objects, evaluated while they train."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processes import Processes, ended
from real_runs import RealRuns, Watch
from waiting import until
from watchglass.config import RuleSpec
from watchglass.diagnose import diagnose
from watchglass.errors import UnknownNameError
from watchglass.evaluate import replay
from watchglass.records import Finding, Severity, Status
from watchglass.rules import find_rule
from watchglass.run import open_run
from watchglass.testing import Batch, Step, build_run
from watchglass.testing.rule_suite import RuleSuite

MB = 1e6

SCRIPT = """
import os, sys, time
import torch
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(64, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
losses, history = [], []
while not os.path.exists(sys.argv[2]):
    loss = model(torch.randn(4096, 64)).pow(2).mean()  # its graph holds a megabyte
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    losses.append(loss if sys.argv[1] == "graphs" else loss.item())
    if sys.argv[1] == "objects":
        history.append([float(number) for number in range(30_000)])  # a megabyte
    time.sleep(0.02)
"""


def minutes(memory: Sequence[float], **more: Any) -> list[Step | Batch]:
    """For each number of bytes a minute in which every sixth sample is that, and the others are more, and six steps."""
    found: list[Step | Batch] = [Step(scalars={"loss": 1.0})]
    for least in memory:
        samples = [least + 300 * MB * (n % 6 > 0) for n in range(12)]
        found += [
            *[Step(scalars={"loss": 1.0}, seconds=10.0)] * 6,
            Batch(metrics={"processes.memory": samples, **more}),
        ]
    return found


def held(steps: Sequence[Step | Batch], *, pid: int, graphs: int = 0, blocks: float = 0) -> list[Step | Batch]:
    """The same with a fact at each step: held graphs of 16 earlier ones, and blocks more after each step."""
    numbers = itertools.count()
    return [
        replace(each, facts={"held_memory": {
            "pid": pid, "graphs": 16, "held": graphs, "blocks": int(1e5 + blocks * next(numbers)),
        }}) if isinstance(each, Step) else each for each in steps
    ]  # fmt: skip


def by_process(memory: Sequence[float], growing: int) -> list[Step | Batch]:
    """The same as :func:`minutes`, of processes 0 and 1, one of which has all that is beyond 100 MB."""
    made = []
    for each in minutes(memory):
        if isinstance(each, Batch):
            rest = [number - 100 * MB for number in each.metrics["processes.memory"]]  # type: ignore[operator]
            rows = [[100 * MB, number] if growing == 1 else [number, 100 * MB] for number in rest]
            each = replace(each, metrics={**each.metrics, "process.memory": rows})
        made.append(each)
    return made


def growing(count: int, by: float = 100 * MB, begin: float = 1e9) -> list[float]:
    return [begin + by * n for n in range(count)]


def found(path: Path, run: Sequence[Step | Batch], **parameters: object) -> list[Finding]:
    return list(replay(build_run(path, run), [RuleSpec("MemoryLeak", parameters)]).findings)


class TestMemoryLeak(RuleSuite):
    rule = find_rule("MemoryLeak")

    def sick(self) -> Sequence[Step | Batch]:
        return minutes(growing(10))

    def also_sick(self) -> Sequence[Sequence[Step | Batch]]:
        late = [*[1e9] * 80, *growing(20)]
        slow = growing(80, by=4 * MB)  # too little in each four minutes
        return minutes(late), minutes(slow)

    def healthy(self) -> Sequence[Step | Batch]:
        # It grows to a level, saw-teeth, one jump, and noise.
        level = [1e9 + 500 * MB * (1 - 0.5**n) for n in range(30)]
        teeth = [1.5e9 + 300 * MB * (n % 3) for n in range(30)]
        noise = (2.5e9 + 20 * MB * np.random.default_rng(0).normal(size=30)).tolist()
        return minutes([*level, *teeth, *[1.6e9] * 10, *[2.5e9] * 10, *noise])


def test_the_message_has_rate_and_time_left(run_path: Path) -> None:
    run = minutes(growing(6), **{"memory.limit": [16e9] * 12})
    (finding,) = found(run_path, run)
    assert finding.count == 1
    assert finding.message == (
        "the memory of the run's processes grew from 1.10 GB to 1.40 GB in 3 minutes, 16.7 MB for each training step, "
        "and did not level off; at this rate the limit of 16.00 GB is reached 2 hours after step 29"
    )
    assert finding.evidence["bytes_per_second"] == pytest.approx(100 * MB / 60, rel=1e-3)
    assert finding.ends_in_s == pytest.approx(146 * 60, rel=1e-3)


def test_a_leak_that_is_seen_again_states_the_newest_time_left(run_path: Path) -> None:
    run = minutes([*growing(8), *growing(6, by=500 * MB, begin=2e9)], **{"memory.limit": [16e9] * 12})
    (finding,) = found(run_path, run)
    assert (finding.step, finding.last_step) == (35, 83)
    last = 2e9 + 500 * MB * 4
    assert finding.ends_in_s == pytest.approx((16e9 - last) / (500 * MB) * 60, rel=1e-3)
    assert "at this rate the limit of 16.00 GB is reached 24 minutes after step" in finding.message
    assert finding.evidence["bytes_per_second"] == pytest.approx(500 * MB / 60, rel=1e-3)


@pytest.mark.parametrize(
    ("growing_process", "facts", "cause", "words"),
    [(1, {"graphs": 14}, "graphs_kept", "; the graphs of 14 of 16 earlier steps that were looked at are still held"),
     (1, {"graphs": 16}, "graphs_kept", "; the graphs of all 16 earlier steps that were looked at are still held"),
     (1, {"graphs": 2}, "results_kept", "did not level off"),
     (1, {"blocks": 250}, "python_objects_kept", "; Python holds 250 more objects after each step"),
     (1, {"blocks": 0.4}, "results_kept", "did not level off"),
     (0, {"graphs": 16}, "helper_process_grows", "mostly in process 0, which does not train itself, 16.7 MB")],
)  # fmt: skip
def test_what_grows_is_named_where_facts_show_it(
    run_path: Path, growing_process: int, facts: dict[str, Any], cause: str, words: str
) -> None:
    steps = held(by_process(growing(60), growing_process), pid=1, **facts)
    finding = found(run_path, steps)[0]
    assert words in finding.message
    assert finding.causes[0] == cause


@pytest.mark.parametrize(("by", "begin", "count"), [(34, 1e9, 1), (32, 1e9, 0), (120, 7e9, 1), (115, 7e9, 0)])
def test_growth_is_absolute_and_relative(run_path: Path, by: float, begin: float, count: int) -> None:
    """Over three of the four windows at least 100 MB and 5 percent."""
    assert len(found(run_path, minutes(growing(6, by=by * MB, begin=begin)))) == count


def test_memory_before_the_first_step_does_not_count(run_path: Path) -> None:
    loading = [Batch(metrics={"processes.memory": growing(60, by=20 * MB)}) for _ in range(5)]
    assert found(run_path, [*loading, *minutes([3e9] * 3)[1:]]) == []


def beginning(memory: Sequence[float], limit: float = 16e9) -> list[Step | Batch]:
    """For each number of bytes five seconds in which every fifth sample is that, and the others are more."""
    found: list[Step | Batch] = [Step(scalars={"loss": 1.0})]
    for least in memory:
        samples = [least + 300 * MB * (n % 5 > 0) for n in range(10)]
        found += [
            *[Step(scalars={"loss": 1.0}, seconds=0.5)] * 10,
            Batch(metrics={"processes.memory": samples, "memory.limit": [limit] * 10}, seconds=5),
        ]
    return found


def with_one_process(run: Sequence[Step | Batch]) -> list[Step | Batch]:
    """The same with the memory of process 0, which has all."""
    return [
        replace(each, metrics={**each.metrics, "process.memory": [
            [n] for n in each.metrics["processes.memory"]  # type: ignore[list-item]
        ]})
        if isinstance(each, Batch) else each for each in run
    ]  # fmt: skip


@pytest.mark.parametrize(("by", "severity"), [(50, Severity.INFO), (150, Severity.INFO), (270, Severity.WARNING)])
def test_in_its_first_minutes_a_run_is_warned_that_may_not_live_longer(
    run_path: Path, by: float, severity: Severity
) -> None:
    """Within five minutes at 270 MB in five seconds. Eight windows are compared; a shorter run gets an info."""
    finding = found(run_path, beginning(growing(12, by=by * MB)))[0]
    assert finding.severity is severity
    assert finding.message.startswith("the memory of the run's processes grew from ")
    assert "in 30 s, " in finding.message
    assert "and did not level off; at this rate" in finding.message
    (status,) = replay(str(run_path), [RuleSpec("MemoryLeak")]).statuses
    if severity is Severity.INFO:
        assert finding.symptoms == ()
        assert status.status is Status.NOT_APPLICABLE
        assert diagnose([finding]) == ()
    else:
        (diagnosis,) = diagnose([finding])
        assert diagnosis.headline.startswith("Cause unclear: the memory of the run's processes grew")


@pytest.mark.parametrize(
    ("facts", "cause"),
    [({"graphs": 16}, "graphs_kept"), ({"blocks": 250}, "python_objects_kept"), ({}, "results_kept")],
)
def test_what_grows_at_first_is_named_where_facts_show_it(run_path: Path, facts: dict[str, Any], cause: str) -> None:
    finding = found(run_path, with_one_process(held(beginning(growing(12, by=400 * MB)), pid=0, **facts)))[0]
    assert (finding.severity, finding.causes[0]) == (Severity.WARNING, cause)


def test_held_graphs_are_enough_in_the_first_minutes(run_path: Path) -> None:
    (finding,) = found(run_path, with_one_process(held(beginning(growing(12, by=30 * MB)), pid=0, graphs=16)))
    assert (finding.severity, finding.causes[0]) == (Severity.WARNING, "graphs_kept")
    without = with_one_process(held(beginning(growing(12, by=30 * MB)), pid=0))
    (finding,) = found(run_path.with_name("without"), without)
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(
    "memory",
    [
        [1e9] * 10,
        [*growing(6, by=400 * MB), *[3.0e9] * 8],
        [1e9, 3e9] * 6,
        [1e9] * 5 + [4e9] * 5,
        growing(10, by=5 * MB),
    ],
)
def test_memory_that_levels_off_at_first_is_no_leak(run_path: Path, memory: list[float]) -> None:
    assert found(run_path, beginning(memory)) == []


def test_what_a_long_run_does_at_first_is_judged_by_its_minutes(run_path: Path) -> None:
    """A data set is read into memory for half a minute, slowly enough, and stays there."""
    assert found(run_path, beginning([*growing(7, by=100 * MB), *[1.6e9] * 60])) == []


def test_a_run_without_samples_is_not_judged(run_path: Path) -> None:
    (status,) = replay(build_run(run_path, [Step(scalars={"loss": 1.0})]), [RuleSpec("MemoryLeak")]).statuses
    assert status.status is Status.STARVED


def test_a_short_run_is_not_judged(run_path: Path) -> None:
    (status,) = replay(build_run(run_path, minutes([1e9] * 4)), [RuleSpec("MemoryLeak")]).statuses
    assert (status.status, status.reason) == (
        Status.NOT_APPLICABLE, "the run was sampled for less than 5 windows of 60 s",
    )  # fmt: skip
    (status,) = replay(build_run(run_path.with_name("long"), minutes([1e9] * 7)), [RuleSpec("MemoryLeak")]).statuses
    assert status.status is Status.NO_ISSUES_FOUND


# Not with a preloaded interpreter: its processes are not those of the launcher, so nobody would sample them.
@pytest.mark.slow
class TestMemoryLeakInRealRuns(RealRuns):
    rule = "MemoryLeak"
    cause = "graphs_kept"
    leak = "graphs"
    reads_more = "no two runs have the same samples"

    def rules(self) -> list[RuleSpec]:
        return [RuleSpec(self.rule, {"window_s": 1.0})]

    def train(self, watch: Watch, *, sick: bool) -> None:
        raise NotImplementedError

    def record(self, run: Path, capture: dict[str, Any], *, sick: bool) -> None:
        script, end = run.parent / "train.py", run.parent / f"{run.name}.end"
        script.write_text(SCRIPT)
        options = ["--run", str(run), "--rules", "MemoryLeak:window_s=1", "--sample-interval", "0.1"]
        options += ["--save-interval", "4"]
        processes = Processes()
        try:
            which = self.leak if sick else "healthy"
            launcher = processes.start("-m", "watchglass", "run", *options, script, which, end, cwd=run.parent)
            # The sick run goes on until it is found, and the other one until there is as much to compare.
            until(lambda: self.found(open_run(run).journal.findings) if sick else _has_samples(run), pause_s=0.2,
                  despite=(UnknownNameError, OSError))  # fmt: skip
            end.touch()
            status, _, errors = ended(launcher)
        finally:
            processes.close()
        assert status == 0, errors
        assert bool(self.found(open_run(run).journal.findings)) is sick, "found while it trained"


class TestMemoryLeakOfPythonObjects(TestMemoryLeakInRealRuns):
    cause = "python_objects_kept"
    leak = "objects"

    # The healthy twin is that of the class above.
    test_no_rule_fires_on_the_healthy_twin = None  # type: ignore[assignment]


def _has_samples(run: Path) -> bool:
    """Whether there are samples in ten seconds since the first step."""
    opened = open_run(run)
    if not opened.steps():
        return False
    times, first_ns = opened.samples("processes.memory").time_ns, opened.worker().tables.steps.log.latest["end_ns"][0]
    return len(np.unique(times[times > first_ns] // 1_000_000_000)) > 10
