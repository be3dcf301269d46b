"""A snapshot of a run stays as it was, for any number of threads, while the run is written and refreshed."""

import threading

import numpy as np
import pytest

from watchglass.errors import CompactedError, InvalidValueError
from watchglass.records import Fact, Mode
from watchglass.run import open_run
from watchglass.store import LocalStore, compact
from watchglass.testing import RunBuilder, Step, build_run


def step(number, mode=Mode.TRAIN):
    return Step(
        {"loss": 1.0 / (number + 1)},
        {"fc1.weight": np.full((2, 3), number + 1.0)},
        facts=[Fact("seen", number, "test", {"n": number})],
        mode=mode,
    )


def content(run):
    """What many calls say of a run."""
    table = run.statistics(mode=Mode.GLOBAL, histograms=True).to_arrow()
    return {
        "steps": {mode: run.steps(mode) for mode in Mode},
        "loss": [column.tolist() for column in run.scalars("loss")],
        "l2": [column.tolist() for column in run.tensor("fc1.weight").reductions("l2")],
        "spread": [run.tensor("fc1.weight").histogram(n).counts.tolist() for n in run.steps()[-3:]],
        "stretches": [run.stretches(mode) for mode in (Mode.TRAIN, Mode.EVAL)],
        "facts": run.facts(),
        "table": table.to_pylist(),
        "at": {n: run.step(n, Mode.GLOBAL).statistics("weight").l2.tolist() for n in run.steps(Mode.GLOBAL)[-3:]},
        "names": run.tensor_names(mode=Mode.EVAL),
        "journal": (list(run.journal.findings), run.seams, run.attempts, run.workers, run.modes, run.finished),
    }


def test_threads_read_snapshots_while_the_run_is_refreshed(tmp_path):
    taken, found, failed = [], {}, []
    begun, over = threading.Event(), threading.Event()

    def read():
        try:
            begun.wait(30)
            while not over.is_set() or any((place, threading.get_ident()) not in found for place in range(len(taken))):
                for place, (snapshot, _) in enumerate(list(taken)):
                    found[place, threading.get_ident()] = content(snapshot)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        with RunBuilder(tmp_path) as builder:
            run = open_run(tmp_path)
            for number in range(40):
                builder.step(step(number, Mode.EVAL if number % 4 == 3 else Mode.TRAIN))
                assert run.refresh()
                if number % 10 == 9:
                    taken.append((run.snapshot(), content(open_run(tmp_path))))
                    begun.set()
    finally:
        begun.set()
        over.set()
        for thread in threads:
            thread.join(60)
    assert not failed
    assert len(found) == len(taken) * len(threads)
    for (place, _), each in found.items():
        assert each == taken[place][1]


def test_what_changes_the_course_later_is_not_seen(tmp_path):
    with RunBuilder(tmp_path, alive=False) as builder:
        for number in range(6):
            builder.step(step(number))
        run = open_run(tmp_path)
        known, snapshot = content(run), run.snapshot()
        of_it = snapshot.snapshot()
    with RunBuilder(tmp_path, alive=False, resumed={"start_step": 2, "source": "optimizer"}) as builder:
        builder.step(step(0))
    assert run.refresh().rebuilt
    assert run.steps() == [0, 1, 2]
    assert content(snapshot) == content(of_it) == known
    assert content(run.snapshot()) == content(open_run(tmp_path))


def test_a_snapshot_goes_on_with_what_the_run_has_worked_out(tmp_path):
    run = open_run(build_run(tmp_path, [step(n, Mode.EVAL if n % 3 == 2 else Mode.TRAIN) for n in range(12)]))
    stretches, columns = run.stretches(), run.worker().columns
    snapshot = run.snapshot()
    assert np.shares_memory(snapshot.worker().columns, columns)
    assert snapshot.stretches() == stretches
    # Those from the last TRAIN step on may get others before them.
    same = [known is stretch for known, stretch in zip(stretches, snapshot.stretches(), strict=True)]
    assert same == [True, True, True, False]


def test_a_snapshot_is_not_refreshed(tmp_path):
    snapshot = open_run(build_run(tmp_path, [step(n) for n in range(3)])).snapshot()
    assert snapshot.is_snapshot
    for ask in (snapshot.refresh, lambda: snapshot.wait_for_steps(9)):
        with pytest.raises(InvalidValueError, match="a snapshot cannot be refreshed; refresh its run"):
            ask()


def test_a_snapshot_of_a_run_that_was_compacted_says_so_where_it_has_to_be_read(tmp_path):
    path = build_run(tmp_path / "run", [step(n) for n in range(6)], steps_per_flush=2)
    run = open_run(path)
    snapshot, losses = run.snapshot(), run.scalars("loss")[1].tolist()
    assert compact(LocalStore(path)).written
    with pytest.raises(CompactedError, match="was compacted while it was read"):
        snapshot.tensor("fc1.weight").reductions("l2")
    assert snapshot.scalars("loss")[1].tolist() == losses
    run.refresh(again=True)
    assert content(run.snapshot()) == content(open_run(path))
