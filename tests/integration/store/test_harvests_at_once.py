"""Of several processes that recover the records of a dead worker, one does."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np

from stores.dead_workers import DeadWorker
from watchglass import open_run
from watchglass.records import SCALARS, UNITS
from watchglass.run import Run
from watchglass.stats import of_array


def assert_whole(path: Path, numbers: range, *, captured: range | None = None) -> Run:
    """Every record of the steps is there, and once."""
    run = open_run(path)
    assert run.steps() == list(numbers)
    steps, losses = run.scalars("loss")
    assert steps.tolist() == list(numbers)
    assert losses.tolist() == [1.0 / (number + 1) for number in numbers]
    tables = run.worker().tables
    assert [
        row["seen"] for row in ({f.kind: f.data["number"] for f in tables.facts(n)} for n in captured or numbers)
    ] == [*(captured or numbers)]
    for number in captured or numbers:
        assert len(tables.facts(number)) == 1
        assert len(tables.rows(UNITS, number)) == 1
        assert len(tables.rows(SCALARS, number)) == 2
        array = np.random.default_rng(number).normal(size=10)
        assert tables.statistics.at(number).values[0].tolist() == of_array(array).tolist()
        assert tables.steps[number].captures == 1
    assert [problem for problem in run.problems if "ends within a frame" not in problem.what] == []
    return run


HARVEST = """
import sys
from watchglass.record import harvest
from watchglass.store import open_store
sys.stdin.readline()
print(sum(found.steps for found in harvest(open_store(sys.argv[1]), by="test")))
"""


def test_of_several_harvesters_one_does_it(run_path: Path) -> None:
    worker = DeadWorker(run_path)
    worker.train(range(300))
    worker.die()
    command = [sys.executable, "-c", textwrap.dedent(HARVEST), str(run_path)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    steps = [int(process.communicate()[0]) for process in processes]
    assert sorted(steps) == [0, 0, 0, 300]
    assert_whole(run_path, range(300))
