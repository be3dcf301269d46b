"""A reader follows a run that goes on: each refresh says what is new since a cursor."""

import tracemalloc

import numpy as np

from watchglass.records import SCALARS, Fact, Mode, Role, StepEnd, TensorInfo
from watchglass.run import open_run
from watchglass.store import (
    LocalStore,
    SegmentWriter,
    create_attempt,
    create_run,
    encode_catalog,
    encode_facts,
    encode_rows,
    encode_step_ends,
    table_of,
)
from watchglass.testing import RunBuilder

LONG = 100_000


def train(writer, steps):
    numbers = list(steps)
    rows = table_of(SCALARS, [(number, 0, 32, 1 / (1 + number)) for number in numbers])
    ends = [StepEnd(n, Mode.TRAIN, n, n, 10 * n, 10 * n + 9) for n in numbers]
    writer.write([encode_rows(SCALARS, rows), encode_step_ends(ends)])


def test_a_reader_follows_a_long_run_by_what_is_new_alone(tmp_path):
    store = LocalStore(tmp_path)
    create_run(store, command=[])
    create_attempt(store, "")
    writer = SegmentWriter(store, 0, "worker_0")
    writer.write([encode_catalog([TensorInfo(0, "loss", Role.LOSS)])])
    for first in range(0, LONG, 5000):
        train(writer, range(first, first + 5000))
    run = open_run(tmp_path)
    cursor, losses = run.cursor, run.scalars("loss")[1]
    assert len(losses) == LONG
    moved, large = 0, 0
    for first in range(LONG, LONG + 100, 10):
        train(writer, range(first, first + 10))
        before = run.worker().columns
        tracemalloc.start()
        try:
            news = run.refresh(since=cursor)
            large += tracemalloc.get_traced_memory()[1] > 15 * LONG
        finally:
            tracemalloc.stop()
        moved += not np.shares_memory(run.worker().columns, before)
        assert (bool(news), news.rebuilt, news.workers) == (True, False, ("worker_0",))
        assert news.steps().tolist() == list(range(first, first + 10))
        assert not len(news.steps(Mode.EVAL))
        cursor = news.cursor
    assert large <= moved <= 1, "a refresh copies no old steps, unless the log is enlarged"
    assert not run.refresh(since=cursor)
    steps, values = run.scalars("loss")
    assert len(steps) == LONG + 100
    np.testing.assert_array_equal(values[:LONG], losses)


def test_two_readers_have_cursors_of_their_own(tmp_path):
    with RunBuilder(tmp_path) as builder:
        run = open_run(tmp_path)
        slow = run.cursor
        for value in range(3):
            builder.step(scalars={"loss": float(value)})
            assert run.refresh().steps().tolist() == [value]
        assert run.refresh(since=slow).steps().tolist() == [0, 1, 2]
        assert run.refresh(since=slow).steps(Mode.GLOBAL).tolist() == [0, 1, 2]


def test_an_attempt_that_was_joined_makes_all_of_the_course_new(tmp_path):
    with RunBuilder(tmp_path, alive=False) as builder:
        for value in range(4):
            builder.step(scalars={"loss": float(value)})
    run = open_run(tmp_path)
    with RunBuilder(tmp_path, alive=False, resumed={"start_step": 2, "source": "optimizer"}) as builder:
        builder.step(scalars={"loss": 7.0})
    news = run.refresh()
    assert news.rebuilt
    assert news.steps().tolist() == [0, 1, 2]
    assert not run.refresh().rebuilt


def test_a_restart_of_the_reading_makes_all_of_it_new(tmp_path):
    with RunBuilder(tmp_path) as builder:
        builder.step(scalars={"loss": 1.0})
        run = open_run(tmp_path)
        news = run.refresh(again=True)
        assert news.rebuilt
        assert news.steps().tolist() == [0]


def test_new_facts_come_once(tmp_path):
    with RunBuilder(tmp_path) as builder:
        run = open_run(tmp_path)
        builder.step(scalars={"loss": 1.0}, facts={"seen": {"n": 0}})
        builder.facts({"noted": {}})
        builder.flush()
        first = run.refresh()
        assert [fact.kind for fact in first.facts()] == ["noted", "seen"]
        builder.step(scalars={"loss": 1.0}, facts={"seen": {"n": 1}, "other": {}})
        news = run.refresh()
        assert [(fact.global_step, fact.data) for fact in news.facts("seen")] == [(1, {"n": 1})]
        assert len(run.refresh(since=first.cursor).facts()) == 2
        assert run.refresh().facts() == []
        assert len(run.refresh(again=True).facts()) == 4


def test_numbers_over_all_modes_that_move_make_all_of_it_new(tmp_path):
    with RunBuilder(tmp_path, alive=False) as builder:
        for value in range(4):
            builder.step(scalars={"loss": float(value)})
    store = LocalStore(tmp_path)
    writer = SegmentWriter(store, create_attempt(store, ""), "worker_0")
    data = {"start_step": 2, "source": "optimizer"}
    later = StepEnd(1, Mode.TRAIN, 2, 2, 0, 9)
    writer.write([encode_facts([Fact("resumed", -1, "test", data)]), encode_step_ends([later])])
    run = open_run(tmp_path)
    known = run.steps(Mode.GLOBAL)
    writer.write([encode_step_ends([StepEnd(3, Mode.TRAIN, 3, 3, 10, 19)])])
    assert not run.refresh().rebuilt
    writer.write([encode_step_ends([StepEnd(0, Mode.EVAL, 0, 1, 0, 9)])])
    news = run.refresh()
    assert known == [0, 1, 2]
    assert news.rebuilt
    assert news.steps(Mode.GLOBAL).tolist() == run.steps(Mode.GLOBAL) == [0, 1, 2, 3, 5]
