"""Whatever the order and the pieces in which data arrive, the findings are those of a replay."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from trainings import MODULES, training, with_evaluations
from watchglass.evaluate import Engine, Follower, replay
from watchglass.records import Fact
from watchglass.rules import default_rules
from watchglass.store import LocalStore
from watchglass.testing import RunBuilder, Step


def _sick() -> list[Step]:
    """A training with something for most rules: dead units, a rising validation loss, then divergence to NaN."""
    steps = training(
        48,
        loss=lambda n: 2.3 * 0.97**n if n < 30 else 2.3 * 4.0 ** (n - 30) if n < 40 else float("nan"),
        gradient=lambda n, i: 1e-2 * (1.0 if n < 30 else 4.0 ** (n - 30)),
        ratio=lambda n, i: 0.0 if i == 0 else 2.0 if n >= 30 else 1e-3,
        dead=lambda n, i: 0.9 if i == 0 else 0.2,
        facts={0: {"optimizer": {"type": "SGD", "groups": [{"lr": 5.0}]}}},
    )
    return with_evaluations(steps, lambda n: 1.0 + n / 10, every=6)


STEPS = _sick()


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(rank, steps to write before the next look) for two workers, each until its training is over."""
    left = [len(STEPS), len(STEPS)]
    plan: list[tuple[int, int]] = []
    while any(left):
        rank = draw(st.sampled_from([r for r in (0, 1) if left[r]]))
        count = min(draw(st.integers(1, 20)), left[rank])
        left[rank] -= count
        plan.append((rank, count))
    return plan


@hypothesis_settings(max_examples=12)
@given(plan=arrivals(), chunk=st.sampled_from([1, 4096, 1 << 20]))
def test_live_equals_replay(tmp_path_factory, plan: list[tuple[int, int]], chunk: int) -> None:
    path: Path = tmp_path_factory.mktemp("property") / "run"
    with RunBuilder(path, modules=MODULES, workers=2) as builder:
        builder.facts([Fact("model", -1, "test", {"module_types": dict(MODULES), "roots": ["model"]})])
        builder.flush()
        follower, engine = Follower(LocalStore(path)), Engine(default_rules())
        written = [0, 0]
        for rank, count in plan:
            worker = builder.workers[rank]
            for step in STEPS[written[rank] : written[rank] + count]:
                worker.step(step)
            written[rank] += count
            worker.flush()
            for views in follower.poll(max_bytes=chunk):
                engine.feed(views)
        builder.leave()
    while True:
        before = follower.frames
        for views in follower.poll(full=True, max_bytes=chunk):
            engine.feed(views)
        if follower.frames == before:
            break
    for views in follower.drain():
        engine.feed(views)
    engine.finish(worker.view for worker in follower.workers.values() if worker.view is not None)
    replayed = replay(path)
    assert [f.to_json() for f in engine.findings] == [f.to_json() for f in replayed.findings]
    assert engine.statuses() == replayed.statuses
    assert {"ExplodingTensor", "DeadRelu", "Overfit", "LossNotDecreasing"} <= {f.rule for f in engine.findings}
    # What is found on a worker does not depend on which other workers there are.
    by_worker = [
        [(f.rule, f.step, f.count, f.message) for f in engine.findings if f.worker == w]
        for w in ("worker_0", "worker_1")
    ]
    assert by_worker[0] == by_worker[1]
    shutil.rmtree(path)


def test_a_late_fact_comes_with_the_next_step(run_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        builder.step(scalars={"loss": 1.0})
        worker = builder.workers[0]
        from watchglass.store import encode_facts

        worker._writer.write([encode_facts([Fact("step_skipped", 0, "late", {})])])
        builder.step(scalars={"loss": 2.0}, facts={"loss_scale": {"scale": 2.0}})
        builder.step(scalars={"loss": np.pi})
        builder.leave()
    seen = []
    follower = Follower(LocalStore(run_path))
    for views in follower.poll(full=True):
        seen += [[fact.kind for fact in view.facts()] for view in views]
    assert seen == [[], ["step_skipped", "loss_scale"], []]
