"""What a follower shows once, what it waits for, and what it keeps in memory."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from moments import views_shown
from stores.store_segments import new_store
from watchglass.evaluate import Follower, replay
from watchglass.evaluate.follower import _Numbers
from watchglass.records import SCALARS, Fact, Mode, Role, StepEnd, TensorInfo
from watchglass.store import (
    LocalStore,
    RunReader,
    SegmentWriter,
    claim_worker,
    compact,
    dtype_of,
    encode_catalog,
    encode_facts,
    encode_lifecycle,
    encode_rows,
    encode_step_ends,
    layout,
)
from watchglass.testing import RunBuilder, Step, build_run


def ended(number):
    return encode_step_ends([StepEnd(number, Mode.TRAIN, number, number, number, number + 1)])


def joined(worker="worker_0"):
    return encode_lifecycle({"event": "joined", "worker": worker, "time_ns": 0, "wall_ns": 0})


def shown(follower):
    """Facts of each step that is complete by now."""
    return [[fact.kind for fact in view.facts()] for views in views_shown(follower.poll(full=True)) for view in views]


def test_facts_that_were_written_twice_are_shown_once(tmp_path):
    """A write that failed halfway is repeated in the next segment; a reader that was quick has seen its first part."""
    store = new_store(tmp_path)
    follower, writer = Follower(store), SegmentWriter(store, 0, "worker_0")
    of_the_run, late = encode_facts([Fact("model", -1, "test")]), encode_facts([Fact("late", 0, "test")])
    writer.write([joined(), ended(0)])
    assert shown(follower) == [[]]
    writer.write([of_the_run, late])
    assert shown(follower) == []
    again = SegmentWriter(store, 0, "worker_0")
    again.write([of_the_run, late, encode_facts([Fact("k", 1, "test")]), ended(1)])
    assert shown(follower) == [["model", "late", "k"]]
    again.write([of_the_run, ended(2)])
    assert shown(follower) == [[]]


def test_a_step_that_ends_twice_is_shown_once(tmp_path):
    store = new_store(tmp_path)
    follower = Follower(store)
    SegmentWriter(store, 0, "worker_0").write([joined(), ended(0)])
    assert len(shown(follower)) == 1
    SegmentWriter(store, 0, "worker_0").write([ended(0), ended(1)])
    assert len(shown(follower)) == 1
    assert shown(follower) == []


def test_many_steps_that_end_twice_are_shown_once(tmp_path):
    """What waits for a store that is unreachable is written at once, and again where that fails halfway."""
    store = new_store(tmp_path)
    follower = Follower(store)
    SegmentWriter(store, 0, "worker_0").write([joined(), *map(ended, range(3000))])
    assert len(shown(follower)) == 3000
    SegmentWriter(store, 0, "worker_0").write([*map(ended, range(3001))])
    assert len(shown(follower)) == 1


def _evaluation_within(count):
    """A TRAIN step that waits for its update while an evaluation goes on: it begins first and ends last."""
    first = StepEnd(0, Mode.TRAIN, 0, 0, 0, 1)
    return [*(StepEnd(n, Mode.EVAL, n - 1, 0, n, n + 1) for n in range(1, count)), first]


def _losses(numbers):
    return encode_rows(SCALARS, np.array([(n, 0, 1.0, float(n)) for n in numbers], dtype_of(SCALARS)))


def _seen(groups):
    return [(view.worker, view.global_step, view.scalar("loss")) for views in groups for view in views]


def test_a_step_that_ends_after_later_ones_keeps_what_belongs_to_it(tmp_path):
    store = new_store(tmp_path)
    ends = _evaluation_within(200)
    frames = [joined(), encode_catalog([TensorInfo(0, "loss", Role.LOSS)]), _losses(range(200)), encode_step_ends(ends)]
    writer = SegmentWriter(store, 0, "worker_0")
    writer.write(frames)
    follower = Follower(store)
    assert _seen(views_shown(follower.poll())) == [
        ("worker_0", end.global_step, float(end.global_step)) for end in ends
    ]
    writer.write(list(map(ended, range(200, 300))))
    assert len(shown(follower)) == 100
    (worker,) = follower.workers.values()
    assert len(worker.tables.steps) <= 65


def test_what_belongs_to_a_step_is_kept_until_it_ends(tmp_path):
    """Records of a flush were read and the ends of their steps not yet, while steps before them are evaluated."""
    store = new_store(tmp_path)
    writers = [SegmentWriter(store, 0, f"worker_{rank}") for rank in (0, 1)]
    ends = _evaluation_within(200)
    for writer, worker in zip(writers, ("worker_0", "worker_1"), strict=True):
        writer.write([joined(worker), encode_catalog([TensorInfo(0, "loss", Role.LOSS)])])
    writers[0].write([_losses(range(1, 150)), encode_step_ends(ends[:149]), _losses([*range(150, 200), 0])])
    follower = Follower(store)
    assert _seen(views_shown(follower.poll())) == []
    writers[1].write([_losses(range(200)), encode_step_ends(ends)])
    found = _seen(views_shown(follower.poll()))
    writers[0].write([encode_step_ends(ends[149:])])
    found += _seen(views_shown(follower.poll()))
    assert sorted(found) == sorted(
        (f"worker_{rank}", end.global_step, float(end.global_step)) for rank in (0, 1) for end in ends
    )


@given(st.lists(st.integers(0, 60), max_size=80))
def test_numbers_are_a_set(numbers):
    known, expected = _Numbers(), set()
    for number in numbers:
        assert (number in known) == (number in expected)
        if number not in expected:
            known.add(number)
            expected.add(number)
    assert [n for n in range(62) if n in known] == sorted(expected)
    assert all(known.first_missing(n) == next(m for m in range(n, 99) if m not in expected) for n in range(62))


def test_few_numbers_that_never_came_are_remembered():
    known = _Numbers()
    for number in range(0, 10_000, 2):
        known.add(number)
    assert 1 in known
    assert 9_999 not in known
    assert 9_997 not in known
    assert 9_998 in known


def test_nothing_is_shown_before_every_worker_was_read_however_little_is_read_at_a_time(tmp_path):
    long = {"noted": {"text": "x" * 70_000}}  # more than is read of a worker at a time
    path = build_run(tmp_path / "run", [Step({"loss": 1.0}, facts=long)] * 10, workers=5, steps_per_flush=1)
    follower = Follower(LocalStore(path))
    groups, polls = [], 0
    while True:
        before = follower.frames
        groups += [[view.worker for view in views] for views in views_shown(follower.poll(full=True, max_bytes=800))]
        if follower.frames == before:
            break
        polls += 1
    assert groups == [[layout.worker_name(rank) for rank in range(5)]] * 10
    assert polls > 5


def test_a_worker_of_which_only_a_later_segment_is_there_is_waited_for(tmp_path):
    store = new_store(tmp_path)
    writers = [SegmentWriter(store, 0, f"worker_{rank}", rotate_bytes=1) for rank in (0, 1)]
    for rank, writer in enumerate(writers):
        claim_worker(store, 0, f"worker_{rank}")
        writer.write([joined(f"worker_{rank}")])
        writer.write([ended(0)])
    first = next(e.path for e in store.list() if e.path.endswith("worker_1-00000000"))
    kept = store.read(first)
    store.delete(first)
    follower = Follower(store)
    assert shown(follower) == []
    store.write(first, kept)
    assert [len(views) for views in views_shown(follower.poll(full=True))] == [2]


def test_what_was_shown_is_not_kept(tmp_path):
    with RunBuilder(tmp_path / "run") as builder:
        follower = Follower(builder.store)
        for _ in range(300):
            builder.step(Step({"loss": 1.0}, {"a.weight": np.ones(3)}))
            assert len(shown(follower)) == 1
        (worker,) = follower.workers.values()
        assert len(worker.tables.steps) <= 64
        assert len(worker.tables.statistics._batches) <= 65
        builder.leave()


@pytest.mark.parametrize("steps_per_flush", [1, 7])
def test_a_compacted_run_is_followed_and_judged_like_the_live_one(tmp_path, steps_per_flush):
    random = np.random.default_rng(0)
    scales = {name: random.normal(size=(5, 4)) for name in ("fc1.weight", "gradient/fc1.weight")}
    steps = [
        Step(
            {"loss": float(np.nan if n > 70 else 1 / (n + 1))},
            {name: scale * 0.7**n for name, scale in scales.items()},
            facts={"k": {"n": n}} if n % 9 == 0 else {},
            mode=Mode.EVAL if n % 10 == 9 else Mode.TRAIN,
        )
        for n in range(90)
    ]  # fmt: skip
    path = build_run(tmp_path / "run", steps, workers=2, steps_per_flush=steps_per_flush, facts={"model": {}})

    def views():
        follower = Follower(LocalStore(path))
        groups = [list(map(everything, views)) for views in views_shown(follower.poll(full=True))]
        return groups + [list(map(everything, views)) for views in views_shown(follower.drain())]

    def everything(view):
        rows = view.statistics()
        histograms = rows.histograms
        return (
            view.worker, view.records.end, view.facts(), repr(view.scalars()), rows.names, rows.values.tobytes(),
            rows.calls.tobytes(), histograms.keys.tobytes(), histograms.counts.tobytes(), histograms.seen.tobytes(),
        )  # fmt: skip

    before, judged = views(), replay(path)
    assert compact(LocalStore(path)).deleted[0] > 0
    assert not [e for e in LocalStore(path).list() if layout.parse_segment(e.path)]
    assert views() == before
    after = replay(path)
    assert judged.findings
    assert repr((after.findings, after.statuses, after.problems)) == repr((judged.findings, judged.statuses, ()))


def test_segments_that_vanish_without_a_generation_are_reported(tmp_path):
    path = build_run(tmp_path / "run", [Step({}, {"a.weight": np.ones(3)})], steps_per_flush=1)
    store = LocalStore(path)
    reader = RunReader(store)
    for entry in store.list(layout.segments(0)):
        store.delete(entry.path)
    assert reader.poll(full=True) == []


def test_workers_that_train_by_themselves_wait_for_no_other(tmp_path):
    store = new_store(tmp_path)
    follower = Follower(store)
    writers = [SegmentWriter(store, 0, f"worker_{number}") for number in range(4)]
    for number, writer in enumerate(writers):
        event = {"event": "joined", "worker": f"worker_{number}", "time_ns": 0, "wall_ns": 0, "alone": number < 2}
        writer.write([encode_lifecycle(event)])
    writers[0].write([ended(0), ended(1)])
    writers[2].write([ended(0)])
    groups = [[view.worker for view in views] for views in views_shown(follower.poll(full=True))]
    assert groups == [["worker_0"], ["worker_0"]], "a rank waits for the other rank"
    writers[3].write([ended(0)])
    writers[1].write([ended(0)])
    groups = [[view.worker for view in views] for views in views_shown(follower.poll(full=True))]
    assert groups == [["worker_2", "worker_3"], ["worker_1"]]
