"""The course of a run over its attempts, computed from facts and ends of steps."""

import numpy as np
import pytest

from watchglass.records import SCALARS, STEPS, Fact, Mode, StepEnd
from watchglass.run import Worker
from watchglass.run.numbering.lineage import Seam, Start, StepRange, evaluations, join, matching_step, start_of, trace
from watchglass.store import LocalStore, RunReader, step_rows, table_of
from watchglass.tables import WorkerTables
from watchglass.tables.row_log import StepEnds
from watchglass.testing import RunBuilder


def tables_of(path, worker="worker_0"):
    tables = {}
    for attempt, name, frame in RunReader(LocalStore(path)).poll():
        if name == worker:
            tables.setdefault(attempt, WorkerTables()).ingest(frame)
    return tables


def write(path, steps, resumed=None):
    with RunBuilder(path, alive=False, resumed=resumed) as builder:
        for step in steps:
            builder.step(**step, flush=False)
        builder.flush()


def losses(values):
    return [{"scalars": {"loss": float(value)}} for value in values]


def weights(arrays):
    return [{"statistics": {"fc.weight": array, "fc.bias": array[0]}} for array in arrays]


def evaluated(*steps):
    """Ends of EVAL steps after these TRAIN steps."""
    return (
        StepEnds()
        .and_then(table_of(STEPS, step_rows(StepEnd(n, Mode.EVAL, n, after, 0, 0) for n, after in enumerate(steps))))
        .log.rows
    )


def trained(lineage, tables):
    """The TRAIN steps of the course with the attempt and global step of each."""
    numbers = Worker("worker_0", tables, lineage).numbers()
    return [(step, *numbers.place(step)) for step in numbers]


# The course


def test_one_attempt_is_the_whole_course():
    starts = {0: Start(0, 10)}
    assert join(starts)[0] == [StepRange(0, 0, None)]
    assert join(starts)[1] == []


def test_a_resumed_attempt_replaces_the_steps_from_its_start_on():
    starts = {0: Start(0, 100), 1: Start(90, 95, "optimizer")}
    assert join(starts)[0] == [StepRange(0, 0, 90), StepRange(1, 90, None)]
    assert join(starts)[1] == [Seam(1, 90, "optimizer", 0, replaced=10)]
    assert str(join(starts)[1][0]) == (
        "attempt 1 continues at step 90 (by the optimizer); it replaces 10 steps that were made before"
    )


def test_an_attempt_that_was_resumed_before_the_last_one_began_replaces_that_whole():
    starts = {0: Start(0, 100), 1: Start(90, 95, "optimizer"), 2: Start(50, 60, "optimizer")}
    assert join(starts)[0] == [StepRange(0, 0, 50), StepRange(2, 50, None)]
    assert join(starts)[1][1] == Seam(2, 50, "optimizer", 0, replaced=45)


def test_a_training_run_resumed_twice_has_three_parts():
    starts = {0: Start(0, 100), 1: Start(90, 200, "optimizer"), 2: Start(180, 300, "optimizer")}
    assert join(starts)[0] == [StepRange(0, 0, 90), StepRange(1, 90, 180), StepRange(2, 180, None)]
    assert [seam.replaced for seam in join(starts)[1]] == [10, 20]


def test_a_restart_replaces_the_whole_course():
    starts = {0: Start(0, 100), 1: Start(90, 95, "optimizer"), 2: Start(0, 5, "unknown")}
    assert join(starts)[0] == [StepRange(2, 0, None)]
    assert join(starts)[1][1] == Seam(2, 0, "unknown", 1, replaced=95)


def test_steps_that_were_not_recorded_are_a_gap_that_the_seam_shows():
    starts = {0: Start(0, 80), 1: Start(100, 120, "optimizer")}
    assert join(starts)[0] == [StepRange(0, 0, 80), StepRange(1, 100, None)]
    assert join(starts)[1] == [Seam(1, 100, "optimizer", 0, missing=20)]
    assert str(join(starts)[1][0]).endswith("; 20 steps before it were never recorded")


def test_an_attempt_of_unknown_begin_is_a_restart_that_replaces_everything():
    starts = {0: Start(0, 80), 1: Start(0, 5, "unknown")}
    assert join(starts)[0] == [StepRange(1, 0, None)]
    assert join(starts)[1] == [Seam(1, 0, "unknown", 0, replaced=80)]
    assert str(join(starts)[1][0]) == (
        "attempt 1 begins again at step 0, by its own count: where it was resumed is unknown; "
        "it replaces 80 steps that were made before"
    )


def test_a_training_run_that_begins_with_another_runs_checkpoint_counts_from_there():
    starts = {0: Start(500, 600, "optimizer"), 1: Start(550, 700, "optimizer")}
    assert join(starts)[0] == [StepRange(0, 500, 550), StepRange(1, 550, None)]
    assert [seam.attempt for seam in join(starts)[1]] == [1]


def test_own_numbers_are_moved_by_what_weights_show():
    starts = {0: Start(0, 80), 1: Start(0, 50, "weights", shift=40), 2: Start(60, 61, "optimizer")}
    assert join(starts)[0] == [StepRange(0, 0, 40), StepRange(1, 40, 60, shift=40), StepRange(2, 60, None)]
    assert join(starts)[1][1] == Seam(2, 60, "optimizer", 1, replaced=30)


# How an attempt began


def resumed(start_step, source="optimizer"):
    return Fact("resumed", -1, "PyTorch", {"start_step": start_step, "source": source})


def test_the_fact_says_where_an_attempt_begins():
    assert start_of([resumed(90)], (90, 91), 1) == Start(90, 92, "optimizer")


def test_steps_that_were_dropped_behind_the_start_do_not_move_it():
    assert start_of([resumed(90)], (93, 93), 1) == Start(90, 94, "optimizer")


def test_an_attempt_without_a_training_step_has_not_begun():
    assert start_of([resumed(90)], None, 1) is None


def test_an_attempt_that_says_nothing_is_of_unknown_begin_unless_it_is_the_first():
    assert start_of([], (0, 0), 0) == Start(0, 1, "")
    assert start_of([], (0, 0), 1) == Start(0, 1, "unknown")
    assert start_of([resumed(None, "unknown")], (0, 0), 1) == Start(0, 1, "unknown")


@pytest.mark.parametrize("nonsense", ["90", -1, True, 1 << 60, 90.5, [90]])
def test_nonsense_in_a_fact_leaves_the_steps_to_decide(nonsense):
    assert start_of([resumed(nonsense)], (90, 90), 1) == Start(90, 91, "unknown")


def test_a_source_of_a_later_release_passes_for_unknown():
    assert start_of([resumed(90, "crystal ball")], (90, 90), 1) == Start(90, 91, "unknown")


# Evaluations


def test_evaluations_after_replaced_steps_are_replaced_and_all_others_are_numbered_on():
    parts = [StepRange(0, 0, 90), StepRange(1, 90, None)]
    ends = {0: evaluated(49, 89, 99), 1: evaluated(89, 99)}
    assert evaluations(parts, ends, Mode.EVAL) == [StepRange(0, 0, 2), StepRange(1, 2, None, shift=2)]


def test_evaluations_of_a_part_with_numbers_of_its_own_are_cut_by_these():
    parts = [StepRange(0, 0, 40), StepRange(1, 40, 60, shift=40), StepRange(2, 60, None)]
    ends = {1: evaluated(9, 19, 29), 2: evaluated(60)}
    assert evaluations(parts, ends, Mode.EVAL) == [
        StepRange(0, 0, 0),
        StepRange(1, 0, 2),
        StepRange(2, 2, None, shift=2),
    ]


# Weights


def history(steps, rows):
    return np.array(steps, np.int64), np.array(rows, float).reshape(len(steps), -1)


def match(first, **earlier):
    return matching_step({name: np.atleast_1d(row).astype(float) for name, row in first.items()}, earlier.get)


def test_the_first_weights_of_an_attempt_are_those_of_the_step_it_was_resumed_at():
    assert match({"w": 3.0}, w=history([0, 4, 8], [1, 3, 5])) == 4


def test_all_weights_must_be_the_same():
    moving, frozen = history([0, 4], [1, 3]), history([0, 4], [7, 7])
    assert match({"w": 3.0, "frozen": 7.0}, w=moving, frozen=frozen) == 4
    assert match({"w": 2.0, "frozen": 7.0}, w=moving, frozen=frozen) is None
    assert match({"w": 3.0, "new": 7.0}, w=moving) is None
    assert match({"w": [3.0, 1.0]}, w=history([0, 4], [[1.0, 1.0], [3.0, 2.0]])) is None
    assert match({}, w=moving) is None


def test_of_steps_in_a_row_with_the_same_weights_the_first_is_meant():
    assert match({"w": 3.0}, w=history([0, 4, 8], [1, 3, 3])) == 4


def test_weights_that_came_back_show_nothing():
    assert match({"w": 3.0}, w=history([0, 4, 8], [3, 1, 3])) is None


def test_weights_that_are_not_numbers_are_the_same_as_such():
    assert match({"w": np.nan}, w=history([0, 4, 8], [1, np.nan, np.nan])) == 4
    assert match({"w": 0.0}, w=history([0, 4], [1, -0.0])) is None


# Whole runs


def test_each_step_of_a_resumed_run_is_seen_once_as_the_newest_attempt_has_it(tmp_path):
    write(tmp_path / "run", losses(range(10)))
    write(tmp_path / "run", losses(range(100, 105)), resumed={"start_step": 6, "source": "optimizer"})
    tables = tables_of(tmp_path / "run")
    lineage = trace(tables)
    rows = trained(lineage, tables)
    assert [step for step, _, _ in rows] == list(range(11))
    assert [attempt for _, attempt, _ in rows] == [0] * 6 + [1] * 5
    seen = []
    for _, attempt, global_step in rows:
        seen += [row.value for row in tables[attempt].rows(SCALARS, global_step) if row.tensor.name == "loss"]
    assert seen == [0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104]


def test_an_attempt_that_has_not_trained_yet_replaces_nothing(tmp_path):
    write(tmp_path / "run", losses(range(3)))
    write(tmp_path / "run", [], resumed={"start_step": 1, "source": "optimizer"})
    tables = tables_of(tmp_path / "run")
    assert [step for step, _, _ in trained(trace(tables), tables)] == [0, 1, 2]


def test_where_nothing_shows_it_the_weights_are_looked_for_in_earlier_attempts(tmp_path):
    arrays = [np.random.default_rng(n).normal(size=(3, 2)).astype(np.float32) for n in range(8)]
    write(tmp_path / "run", weights(arrays))
    write(tmp_path / "run", weights([arrays[5], arrays[0] + 1]), resumed={"start_step": None, "source": "unknown"})
    tables = tables_of(tmp_path / "run")
    lineage = trace(tables)
    assert lineage.parts == (StepRange(0, 0, 5), StepRange(1, 5, None, shift=5))
    assert lineage.seams == (Seam(1, 5, "weights", 0, replaced=3),)
    assert [row[:2] for row in trained(lineage, tables)] == [(n, 0) for n in range(5)] + [(5, 1), (6, 1)]


def test_weights_are_also_found_in_an_attempt_that_was_found_so_itself(tmp_path):
    arrays = [np.random.default_rng(n).normal(size=(3, 2)) for n in range(9)]
    for steps in (arrays[:6], arrays[4:9], [arrays[7]]):
        write(tmp_path / "run", weights(steps))
    assert trace(tables_of(tmp_path / "run")).parts == (
        StepRange(0, 0, 4),
        StepRange(1, 4, 7, 4),
        StepRange(2, 7, None, 7),
    )


def test_other_weights_are_a_restart(tmp_path):
    arrays = [np.random.default_rng(n).normal(size=(3, 2)) for n in range(4)]
    write(tmp_path / "run", weights(arrays[:3]))
    write(tmp_path / "run", weights(arrays[3:]))
    lineage = trace(tables_of(tmp_path / "run"))
    assert lineage.parts == (StepRange(1, 0, None),)
    assert lineage.seams[0].source == "unknown"


def test_weights_are_looked_for_once(tmp_path):
    arrays = [np.random.default_rng(n).normal(size=(3, 2)) for n in range(4)]
    write(tmp_path / "run", weights(arrays))
    write(tmp_path / "run", weights(arrays[2:3]))
    tables, matches = tables_of(tmp_path / "run"), {}
    first = trace(tables, matches)
    assert matches == {1: 2}
    write(tmp_path / "without", losses([1.0] * 4))
    write(tmp_path / "without", losses([1.0]))
    without_weights = tables_of(tmp_path / "without")
    assert trace(without_weights, matches) == first
    assert trace(without_weights, {}) != first


def test_weights_that_were_not_captured_yet_are_looked_for_again(tmp_path):
    arrays = [np.random.default_rng(n).normal(size=(3, 2)) for n in range(4)]
    write(tmp_path / "run", weights(arrays))
    write(tmp_path / "run", losses([1.0]))
    matches = {}
    assert trace(tables_of(tmp_path / "run"), matches).seams[0].source == "unknown"
    assert matches == {}
