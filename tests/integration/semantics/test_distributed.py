"""Training runs by two gloo processes: each rank's values, how they make up the whole, and that nothing notices."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import ranks
from train_twice import l2, losses, trained_twice
from watchglass import Mode, Run, open_run
from watchglass.records import STATISTIC_FIELDS
from watchglass.stats import histograms_of, merge, merge_histograms, of_array

pytestmark = pytest.mark.slow

STEPS = list(range(12))
WORKERS = ["worker_0", "worker_1"]
PARAMETERS = [f"{layer}.{leaf}" for layer in ("first", "second", "head") for leaf in ("weight", "bias")]
EVERY_STEP: dict[str, Any] = {"save_interval": 1, "collections": ("all", "optimizer_variables", "inputs")}


def watched(tmp_path: Path, training: ranks.Training) -> tuple[Run, list[dict[str, Any]]]:
    """The run of a training run by two ranks, which is the same on each of them bare and watched; and its outcome."""
    bare = ranks.run_ranks(training, tmp_path / "bare", None)
    seen = ranks.run_ranks(training, tmp_path / "watched", tmp_path / "run", **EVERY_STEP)
    for rank, (without, with_us) in enumerate(zip(bare, seen, strict=True)):
        differing = sorted(key for key in without.keys() | with_us.keys() if without.get(key) != with_us.get(key))
        assert not differing, f"watching changed rank {rank}: {differing}"
    run = open_run(tmp_path / "run")
    check(run)
    return run, [torch.load(tmp_path / "watched" / f"{rank}.more.pt") for rank in range(ranks.WORLD)]


def check(run: Run) -> None:
    assert list(run.workers) == WORKERS
    assert run.finished
    assert not run.problems
    for worker in WORKERS:
        assert run.steps(worker=worker) == STEPS
        assert run.steps(Mode.EVAL, worker=worker) == []
        assert not run.facts("capture_fault", worker=worker)


@pytest.fixture
def alone(tmp_path: Path) -> Run:
    """The same training by one process on both ranks' data."""
    return trained_twice(tmp_path / "alone", lambda watch: ranks.alone(0, watch))


def same_on_both(run: Run, names: list[str]) -> None:
    for name in names:
        first, second = (l2(run, name, worker=worker) for worker in WORKERS)
        assert list(first) == STEPS, name
        assert first == second, name


def losses_of_all(run: Run) -> NDArray[Any]:
    return np.mean([losses(run, worker=worker) for worker in WORKERS], axis=0)


# -- every rank has the whole model --------------------------------------------------------------------------------


def test_data_parallel_ranks_record_gradients_after_the_all_reduce(tmp_path: Path, alone: Run) -> None:
    run, _ = watched(tmp_path, ranks.data_parallel)
    same_on_both(run, [f"{kind}{name}" for kind in ("", "gradient/", "update/") for name in PARAMETERS])
    for name in PARAMETERS:
        of_ranks, of_one = l2(run, f"gradient/{name}"), l2(alone, f"gradient/{name}")
        np.testing.assert_allclose(list(of_ranks.values()), list(of_one.values()), rtol=1e-4)
    # Data, outputs and losses are each rank's own.
    np.testing.assert_allclose(losses_of_all(run), losses(alone), rtol=1e-5)
    assert losses(run, worker="worker_0") != losses(run, worker="worker_1")
    assert l2(run, "input.0", worker="worker_0") != l2(run, "input.0", worker="worker_1")
    assert run.tensor("first.output").info.module == "first"
    assert run.tensor("gradient/first.weight").info.placement == "local"


def test_gradients_that_are_views_of_buckets_are_never_taken_for_old_ones(tmp_path: Path) -> None:
    run, _ = watched(tmp_path, ranks.data_parallel_in_buckets)
    same_on_both(run, [f"gradient/{name}" for name in PARAMETERS])
    assert list(l2(run, "norm.output", worker="worker_1")) == STEPS


def test_micro_batches_without_synchronisation_are_one_step_with_the_gradient_of_all(tmp_path: Path) -> None:
    run, more = watched(tmp_path, ranks.accumulating)
    same_on_both(run, [f"gradient/{name}" for name in PARAMETERS])
    np.testing.assert_allclose(list(l2(run, "gradient/first.weight").values()), more[0]["norms"], rtol=1e-12)
    assert set(run.tensor("first.output").reductions("count")[1]) == {3 * 8 * 15.0}


def test_an_optimizer_whose_state_is_sharded_records_updates_of_all_parameters(tmp_path: Path, alone: Run) -> None:
    run, _ = watched(tmp_path, ranks.sharded_optimizer)
    same_on_both(run, [f"{kind}{name}" for kind in ("", "gradient/", "update/") for name in PARAMETERS])
    for name in PARAMETERS:
        of_ranks, of_one = l2(run, f"update/{name}"), l2(alone, f"update/{name}")
        np.testing.assert_allclose(list(of_ranks.values()), list(of_one.values()), rtol=1e-2)
    # The state of each parameter lies on one rank.
    held = [set(run.tensor_names(role="optimizer_state", worker=worker)) for worker in WORKERS]
    assert not held[0] & held[1]
    assert held[0] | held[1] >= {f"optimizer/exp_avg/{name}" for name in PARAMETERS}


def test_ranks_that_train_again_into_the_same_run_are_another_attempt(tmp_path: Path) -> None:
    for name in ("first", "second"):
        ranks.run_ranks(ranks.data_parallel, tmp_path / name, tmp_path / "run")
    for attempt in (0, 1):
        check(open_run(tmp_path / "run", attempt=attempt))
    assert open_run(tmp_path / "run").attempts == [0, 1]


# -- every rank has a part of the model ----------------------------------------------------------------------------


def merged(run: Run, name: str, step: int) -> tuple[NDArray[Any], Any]:
    """Statistics and histogram of the whole tensor, from those of the ranks' shards."""
    rows, histograms = [], []
    for worker in WORKERS:
        table = run.worker(worker).tables
        info = table.catalog.by_name(name)
        assert info is not None
        assert info.placement == "shard"
        steps, values, _ = table.statistics.of_tensor(info.tensor_id)
        place = list(steps).index(run.global_step(step, worker=worker))
        rows.append(values[place])
        histograms.append(table.statistics.of_tensor(info.tensor_id)[2].get().take([place]))
    return merge(*rows), merge_histograms(*histograms)


COUNTS = ("count", "nan", "posinf", "neginf", "zero", "min", "max")
#: Where each tensor of a parameter lies in a run, by what it is called in the outcome of a training run.
KINDS = {
    "weight": "", "gradient": "gradient/", "update": "update/", "exp_avg": "optimizer/exp_avg/",
    "exp_avg_sq": "optimizer/exp_avg_sq/",
}  # fmt: skip


def check_whole(run: Run, name: str, step: int, whole: NDArray[Any]) -> None:
    """The ranks' shards make up this tensor: to the bit, and sums within what ``watchglass.stats.native`` states."""
    row, histogram = merged(run, name, step)
    found = dict(zip(STATISTIC_FIELDS, row.tolist(), strict=True))
    expected = dict(zip(STATISTIC_FIELDS, of_array(whole).tolist(), strict=True))
    assert {key: found.pop(key) for key in COUNTS} == {key: expected[key] for key in COUNTS}, (name, step)
    values = whole.ravel().astype(np.float64).tolist()
    total, magnitudes = math.fsum(values), math.fsum(map(abs, values))
    norm, mean = math.sqrt(math.fsum(value * value for value in values)), total / len(values)
    m2 = math.fsum((value - mean) ** 2 for value in values)
    share = (len(values) / 65536 + 200) * 2**-53
    exact = {
        "sum": (total, share * magnitudes), "abs_sum": (magnitudes, share * magnitudes), "l2": (norm, share * norm),
        "m2": (m2, 1e-10 * m2 + 1e-17 * norm**2),
    }  # fmt: skip
    assert found.keys() == exact.keys()
    for key, (value, bound) in exact.items():
        assert abs(found[key] - value) <= bound, (name, step, key, found[key], value)
    alike = histograms_of([whole])
    np.testing.assert_array_equal(histogram.keys, alike.keys)
    np.testing.assert_array_equal(histogram.counts, alike.counts)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[dict[str, Any]]]:
    return watched(tmp_path_factory.mktemp("sharded"), ranks.fully_sharded)


@pytest.mark.parametrize("kind", KINDS)
def test_shards_of_fully_sharded_parameters_make_up_the_whole(sharded: Any, kind: str) -> None:
    run, more = sharded
    for step in STEPS:
        for name in PARAMETERS:
            check_whole(run, f"{KINDS[kind]}{name}", step, more[0]["whole"][step][name][kind].numpy())


def test_ranks_with_shards_train_as_one_process_does(sharded: Any, alone: Run) -> None:
    np.testing.assert_allclose(losses_of_all(sharded[0]), losses(alone), rtol=1e-5)


def test_shards_say_what_they_are_and_what_the_whole_is(sharded: Any) -> None:
    run, more = sharded
    for worker in WORKERS:
        catalog = run.worker(worker).tables.catalog
        for kind in ("", "gradient/", "update/", "optimizer/exp_avg/"):
            info = catalog.by_name(f"{kind}first.weight")
            assert info is not None
            assert (info.placement, info.shape, info.module_type) == ("shard", (15, 12), "Linear")
            for name in PARAMETERS:
                assert list(l2(run, f"{kind}{name}", worker=worker)) == STEPS
        # What the modules compute is whole, and each rank's own.
        assert catalog.by_name("first.output").placement == "local"
        # Each rank has taken the norm of its own part.
        assert catalog.by_name("gradient_norm").placement == "partial"
    parts = [run.scalars("gradient_norm", worker=worker)[1] for worker in WORKERS]
    whole = [
        np.linalg.norm([np.linalg.norm(of_one["gradient"]) for of_one in step.values()]) for step in more[0]["whole"]
    ]
    np.testing.assert_allclose(np.hypot(*parts), whole, rtol=1e-6)
    # A dimension of one cannot be shared: one rank has nothing of it, and says so.
    assert sorted(run.tensor("head.bias").reduction(0, "count", worker=worker) for worker in WORKERS) == [0.0, 1.0]
    assert sorted(run.tensor("first.weight").reduction(0, "count", worker=worker) for worker in WORKERS) == [84.0, 96.0]


def test_tensor_parallel_layers_are_recorded_by_what_each_rank_holds(tmp_path: Path) -> None:
    run, more = watched(tmp_path, ranks.tensor_parallel)
    for step in STEPS:
        for name in ("first.weight", "first.bias", "second.weight"):
            for kind, prefix in KINDS.items():
                check_whole(run, f"{prefix}{name}", step, more[0]["whole"][step][name][kind].numpy())
    for worker in WORKERS:
        catalog = run.worker(worker).tables.catalog
        assert catalog.by_name("gradient/second.bias").placement == "replicated"
        assert catalog.by_name("gradient/head.weight").placement == "local"
        # A module's output is read as the module returns it, before ranks are asked for theirs.
        assert catalog.by_name("first.output").placement == "shard"
        assert catalog.by_name("second.output").placement == "partial"
    same_on_both(run, ["gradient/second.bias", "gradient/head.weight", "head.output"])
    assert losses(run, worker="worker_0") == losses(run, worker="worker_1")
