"""A run that is compacted, its segments removed, while somebody has it open: every call gives what it gave before."""

import numpy as np
import pytest

from watchglass.records import Mode, Reduction
from watchglass.run import open_run
from watchglass.store import LocalStore, compact
from watchglass.testing import Step, build_run


@pytest.fixture
def path(tmp_path):
    steps = [
        Step(
            {"loss": 1.0 / (n + 1)},
            {"fc1.weight": np.random.default_rng(n).normal(size=(4, 3)), "gradient/fc1.weight": np.ones((4, 3))},
            raw={"fc1.weight": np.full((2, 2), n, "f4")},
            reductions={"fc1.weight": {Reduction.MEDIAN: float(n)}},
            mode=Mode.EVAL if n % 4 == 3 else Mode.TRAIN,
        )
        for n in range(12)
    ]
    return build_run(tmp_path / "run", steps, steps_per_flush=2)


ASKED = {
    "reduction": lambda run: run.tensor("fc1.weight").reduction(3, "std"),
    "reductions": lambda run: [column.tolist() for column in run.tensor("fc1.weight").reductions("l2")],
    "histogram": lambda run: run.tensor("fc1.weight").histogram(3).counts.tolist(),
    "quantiles": lambda run: run.tensor("fc1.weight").quantiles([0.1, 0.9])[1].tolist(),
    "steps": lambda run: run.tensor("fc1.weight").steps(Mode.EVAL),
    "values": lambda run: {step: value.tolist() for step, value in run.tensor("fc1.weight").values().items()},
    "step": lambda run: run.step(3).statistics("weight").l2.tolist(),
    "histograms of a step": lambda run: run.step(3).statistics("weight").histograms.counts.tolist(),
    "names": lambda run: (run.tensor_names(mode=Mode.EVAL), run.tensor_names(step=3)),
    "table": lambda run: run.statistics(mode=Mode.GLOBAL, histograms=True).to_arrow().to_pylist(),
    "merged": lambda run: run.statistics(merged=True, worker="all").to_arrow().to_pylist(),
    "sql": lambda run: run.sql("select tensor, max(l2) from statistics group by 1 order by 1").to_arrow().to_pylist(),
    "scalars": lambda run: run.scalars("loss")[1].tolist(),
}  # fmt: skip


@pytest.mark.parametrize("what", ASKED)
def test_what_was_opened_before_gives_the_same_after(path, what):
    known = ASKED[what](open_run(path))
    run = open_run(path)
    assert compact(LocalStore(path)).written
    assert ASKED[what](run) == known
    run.refresh()
    assert ASKED[what](run) == known
    assert ASKED[what](open_run(path)) == known
    assert run.problems == []


def test_a_table_and_a_view_that_were_made_before_are_read_after(path):
    run = open_run(path)
    table, step = run.statistics("weight", fields=["l2"]), run.step(0)
    known = open_run(path).statistics("weight", fields=["l2"]).to_arrow()
    compact(LocalStore(path))
    assert table.to_arrow().equals(known)
    assert step.statistics("weight").l2[0] == known["l2"][0].as_py()
    assert step.histogram("gradient/fc1.weight").counts.tolist() == [12]
    assert step.value("fc1.weight").tolist() == [[0.0, 0.0], [0.0, 0.0]]
