"""Statistics of several workers put together are those of all their data together."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from watchglass.records import STATISTIC_FIELDS, Mode, Role, StepEnd, TensorInfo
from watchglass.run import open_run
from watchglass.run.merged import PLACEMENTS, Merger
from watchglass.stats import histograms_of, of_array
from watchglass.store import (
    LocalStore,
    SegmentWriter,
    StatisticsBatch,
    claim_worker,
    create_attempt,
    create_run,
    encode_catalog,
    encode_lifecycle,
    encode_statistics,
    encode_step_ends,
    release_worker,
    this_process,
)

_NUMBERS = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, np.nan, np.inf, -np.inf, 1e-30, -1e30])
_SHARDS = st.lists(arrays.arrays(np.float64, st.integers(0, 12), elements=_NUMBERS), min_size=1, max_size=5)


def batch_of(parts):
    n = len(parts)
    return StatisticsBatch(
        np.zeros(n, "u8"), np.arange(n, dtype="u4"), np.ones(n, "u4"), np.array([of_array(part) for part in parts]),
        np.zeros(n, "u1"), np.zeros(n, bool), histograms_of(parts),
    )  # fmt: skip


def agree(row, expected):
    """Counts and extremes exactly; sums within what float64 arithmetic in another order may differ."""
    exact = [STATISTIC_FIELDS.index(name) for name in ("count", "nan", "posinf", "neginf", "zero", "min", "max")]
    np.testing.assert_array_equal(row[exact], expected[exact])
    scale = expected[STATISTIC_FIELDS.index("abs_sum")]
    with np.errstate(over="ignore"):
        for name in ("sum", "abs_sum", "l2"):
            index = STATISTIC_FIELDS.index(name)
            assert abs(row[index] - expected[index]) <= 1e-12 * scale
        index = STATISTIC_FIELDS.index("m2")
        assert abs(row[index] - expected[index]) <= 1e-11 * expected[STATISTIC_FIELDS.index("l2")] ** 2


@settings(max_examples=150, deadline=None)
@given(st.lists(_SHARDS, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_parts_merge_to_the_statistics_of_the_whole(tensors, random):
    """``tensors`` are shards of several tensors; each worker has the shards of some of them, in any order of keys."""
    merger = Merger(histograms=True)
    for worker in range(max(map(len, tensors))):
        own = [key for key, shards in enumerate(tensors) if worker < len(shards)]
        random.shuffle(own)
        placement = np.full(len(own), PLACEMENTS.index("shard"), np.int8)
        merger.add(np.array(own, np.int64), placement, batch_of([tensors[key][worker] for key in own]))
    assert merger.keys.tolist() == list(range(len(tensors)))
    assert merger.workers.tolist() == [len(shards) for shards in tensors]
    assert merger.calls.tolist() == [1] * len(tensors)
    for row, shards in enumerate(tensors):
        whole = np.concatenate(shards)
        agree(merger.values[row], of_array(whole))
        (keys, counts), known = merger.histograms.row(row), histograms_of([whole])
        assert (keys.tolist(), counts.tolist()) == (known.keys.tolist(), known.counts.tolist())
        assert merger.histograms.seen[row] == whole.size


WORKERS = 3
#: Name -> placement and what each worker has of it at a step.
TENSORS = {
    "sharded.weight": ("shard", lambda step, rank: np.arange(12.0)[4 * rank : 4 * rank + 4] + step),
    "copied.weight": ("replicated", lambda step, rank: np.full(3, step + 1.0)),
    "act.output": ("local", lambda step, rank: np.random.default_rng([step, rank]).normal(size=(5, 2))),
    "summed.weight": ("partial", lambda step, rank: np.full(2, float(rank))),
}


@pytest.fixture
def run(tmp_path):
    """Three workers whose ids, rows and even steps differ: the second never captures the copies."""
    store = LocalStore(tmp_path / "run")
    create_run(store, command=[])
    create_attempt(store, "")
    for rank in range(WORKERS):
        name = f"worker_{rank}"
        claim_worker(store, 0, name, this_process())
        order = list(TENSORS)[rank:] + list(TENSORS)[:rank]
        rows = [
            TensorInfo(place, each, Role.WEIGHT, shape=TENSORS[each][1](0, rank).shape, placement=TENSORS[each][0])
            for place, each in enumerate(order)
        ]
        batches = []
        for step in range(3):
            own = [place for place, each in enumerate(order) if (each, rank) != ("copied.weight", 1)]
            parts = [TENSORS[order[place]][1](step, rank) for place in own]
            batch = batch_of(parts)
            batch.global_step[:], batch.tensor_id[:] = step, own
            batches.append(encode_statistics(batch))
        ends = [StepEnd(step, Mode.TRAIN, step, step, step, step + 1, len(TENSORS)) for step in range(3)]
        joined = {"event": "joined", "worker": name, "time_ns": 0}
        writer = SegmentWriter(store, 0, name)
        writer.write([encode_lifecycle(joined), encode_catalog(rows), *batches, encode_step_ends(ends)])
        writer.write([encode_lifecycle({**joined, "event": "left", "status": "finished"})])
        writer.close()
        release_worker(store, 0, name)
    return open_run(tmp_path / "run")


def test_each_placement_is_put_together_as_it_must_be(run):
    rows = run.statistics(merged=True, histograms=True).to_arrow().to_pylist()
    found = {(row["step"], row["tensor"], row["worker"]): row for row in rows}
    assert len(found) == 3 * (3 + WORKERS)
    for step in range(3):
        for name in ("sharded.weight", "act.output"):
            row, parts = found[step, name, "all"], [TENSORS[name][1](step, rank).ravel() for rank in range(WORKERS)]
            agree(np.array([row[field] for field in STATISTIC_FIELDS]), of_array(np.concatenate(parts)))
            assert row["workers"] == WORKERS
            assert row["calls"] == (1 if name == "sharded.weight" else WORKERS)
            assert sum(row["histogram_counts"]) == row["count"] - row["zero"]
        copied = found[step, "copied.weight", "all"]
        assert (copied["count"], copied["sum"], copied["workers"]) == (3, 3 * (step + 1), 2)
        assert copied["histogram_seen"] == 3
        for rank in range(WORKERS):
            row = found[step, "summed.weight", f"worker_{rank}"]
            assert (row["sum"], row["workers"]) == (2.0 * rank, 1)


def test_the_same_run_gives_the_same_bits(run):
    first = run.statistics(merged=True).to_arrow()
    assert open_run(run.location).statistics(merged=True).to_arrow().equals(first)


def test_a_placement_of_a_later_release_is_left_per_worker(run):
    for worker in run.workers:
        catalog = run.worker(worker).tables.catalog
        catalog.add(replace(catalog.by_name("act.output"), placement="woven"))
    table = run.statistics(names=["act.output"], steps=(0, 1), merged=True).to_arrow()
    assert table["worker"].to_pylist() == ["worker_0", "worker_1", "worker_2"]
