from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from phased_steps import loader, phased
from real_runs import RealRuns, Watch, batch, classifier, update
from timed_layers import Takes
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding, Mode, Severity, Status
from watchglass.rules import find_rule
from watchglass.testing import Batch, Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def steps(count: int, data_s: float, workers: int = 0) -> list[Step]:
    first = phased(facts=loader(workers), data_s=1.0, forward_s=0.1)  # the start of a loader is not judged
    return [first, *[phased(data_s=data_s, forward_s=0.04, backward_s=0.06)] * (count - 1)]


def cores(number: float) -> Batch:
    return Batch(metrics={"cpu.limit": [number] * 4}, seconds=2)


def found(path: Path, run: Sequence[Step | Batch], workers: int = 1) -> list[Finding]:
    return list(replay(build_run(path, run, workers=workers), [RuleSpec("InputBound")]).findings)


class TestInputBound(RuleSuite):
    rule = find_rule("InputBound")

    def sick(self) -> Sequence[Step]:
        return steps(80, 0.06)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (steps(40, 0.06), steps(80, 0.06, workers=4), [each for each in steps(80, 1.0) if not each.facts])

    def healthy(self) -> Sequence[Step]:
        # An evaluation that waits for its own loader, and some slow batches.
        evaluation = [phased(Mode.EVAL, data_s=1.0, forward_s=0.01)] * 4
        slow = [phased(data_s=0.5, forward_s=0.1), *steps(31, 0.001)[1:]]
        return [*steps(80, 0.02), *evaluation, *steps(80, 0.001)[1:], *slow]


@pytest.mark.parametrize(
    ("data_s", "workers", "of", "message"),
    [
        (
            0.06, 0, 16,
            "38 % of each training step waits for data: 0 loader workers on 16 cores; try num_workers=8; without these "
            "waits steps are at most 1.6 times as fast",
        ),
        (
            0.1, 1, 1,
            "50 % of each training step waits for data: 1 loader worker on 1 core; without these waits steps are at "
            "most 2.0 times as fast",
        ),
        (
            0.3, 12, 16,
            "75 % of each training step waits for data: 12 loader workers on 16 cores; try num_workers=16; without "
            "these waits steps are at most 4.0 times as fast",
        ),
        (
            0.3, 0, None,
            "75 % of each training step waits for data: 0 loader workers; without these waits steps are at most 4.0 "
            "times as fast",
        ),
    ],
)  # fmt: skip
def test_the_message_has_figure_cure_and_gain(
    run_path: Path, data_s: float, workers: int, of: int | None, message: str
) -> None:
    run = [*([] if of is None else [cores(of)]), *steps(80, data_s, workers)]
    (finding,) = found(run_path, run)
    assert finding.message == message
    assert finding.evidence["gain"] == pytest.approx((0.1 + data_s) / 0.1, rel=1e-6)
    assert finding.value == pytest.approx(100 * data_s / (0.1 + data_s), rel=1e-6)


@pytest.mark.parametrize(
    ("loads", "words"),
    [
        ([(1, -1, 2, 0.036, 0.002, 0.002, 0.002)],
         "; of the 20 ms of a batch, 18 ms are needed to fetch samples from the data set; without"),
        ([(1, 0, 1, 0.001, 0.0125, 9.0, 0.0005), (1, 1, 3, 0.003, 0.0375, 9.0, 0.0015), (2, 0, 1, 5.0, 0.0, 0.0, 0.0)],
         "; of the 14 ms of a batch, 12.5 ms are needed in collate_fn; without"),
        ([(1, 0, 1, 0.001, 0.001, 0.2, 0.1)],
         "; of the 102 ms of a batch, 100 ms are needed to transfer it to the script; without"),
        ([(1, 0, 1, math.nan, 0.001, 0.2, 0.1)], "try num_workers=8; without"),
    ],
)  # fmt: skip
def test_the_part_that_takes_most_of_a_batch_is_named(
    run_path: Path, loads: Sequence[tuple[float, ...]], words: str
) -> None:
    first = phased(facts=loader(0), data_s=1.0, forward_s=0.1, loads=[(1, -1, 1, 9.0, 9.0, 9.0, 9.0)])
    (finding,) = found(run_path, [cores(16), first, *[phased(data_s=0.1, forward_s=0.1, loads=loads)] * 79])
    assert words in finding.message


@pytest.mark.parametrize(
    ("load", "cause", "words"),
    [
        ((1, -1, 1, 0.0004, 0.0002, 0.0, 0.0), "small_batches_in_pieces", "0 loader workers on 16 cores; of the"),
        ((1, -1, 1, 0.0009, 0.0002, 0.0, 0.0), "loader_without_workers", "on 16 cores; try num_workers=8; of the"),
        ((1, 0, 1, 0.0004, 0.0002, 0.0, 0.0), "loader_too_slow", "1 loader worker on 16 cores; try num_workers=8"),
        ((1, 0, 1, 0.0004, 0.0002, 0.1, 0.01), "batches_slow_to_send", "; try num_workers=0; of the 10.6 ms"),
        (
            (1, 15, 1, 0.0004, 0.0002, 0.1, 0.01),
            "batches_slow_to_send",
            "workers on 16 cores; try num_workers=0",
        ),
        ((1, 16, 1, 0.0004, 0.0002, 0.1, 0.01), "loader_workers_do_not_fit", "on 16 cores; try num_workers=8; of the"),
        ((1, 0, 1, 0.04, 0.0002, 0.1, 0.01), "loader_too_slow", "1 loader worker on 16 cores; try num_workers=8"),
        (None, "loader_too_slow", "of each training step waits for data; without these waits"),
    ],
)
def test_the_advice_fits_the_workers_that_the_batches_had(
    run_path: Path, load: tuple[float, ...] | None, cause: str, words: str
) -> None:
    """Also where a later model of the script has no fact about its loader."""
    step = phased(data_s=0.1, forward_s=0.1, loads=[] if load is None else [load])
    (finding,) = found(run_path, [cores(16), *[step] * 80])
    assert finding.causes[0] == cause
    assert words in finding.message


@pytest.mark.parametrize(
    ("fetch_s", "batches", "of", "words"),
    [
        # A worker makes a batch while the rest of the step runs.
        (0.1, 1, 2, "; try num_workers=1; of the"),
        (0.2, 1, 2, "; try num_workers=1, with which steps are at most 1.5 times as fast; of the"),
        (0.2, 1, 8, "; try num_workers=4; of the"),
        # Four batches for each update, each made by the process that trains.
        (0.05, 4, 2, "; try num_workers=1, with which steps are at most 1.5 times as fast; of the"),
    ],
)
def test_a_number_of_workers_that_is_not_enough_is_advised_with_its_gain(
    run_path: Path, fetch_s: float, batches: int, of: int, words: str
) -> None:
    load = (1, -1, batches, batches * fetch_s, 0.0, 0.0, 0.0)
    step = phased(data_s=batches * fetch_s, forward_s=0.1, loads=[load])
    (finding,) = found(run_path, [cores(of), *[step] * 80])
    assert words in finding.message
    assert finding.message.endswith(f"steps are at most {1 + 10 * batches * fetch_s:.1f} times as fast")


def test_no_number_of_workers_is_advised_that_makes_batches_no_faster(run_path: Path) -> None:
    """One core for one worker: it makes a batch while a step runs that takes a hundredth of this."""
    step = phased(data_s=0.1, forward_s=0.001, loads=[(1, -1, 1, 0.1, 0.0, 0.0, 0.0)])
    (finding,) = found(run_path, [cores(2), *[step] * 80])
    assert "0 loader workers on 2 cores; of the 100 ms of a batch" in finding.message
    assert "try_workers" not in finding.evidence
    assert finding.causes[0] == "loader_too_slow"


def test_the_gain_of_fewer_workers_is_not_taken_from_those_that_take_turns(run_path: Path) -> None:
    step = phased(data_s=0.1, forward_s=0.1, loads=[(1, 16, 1, 0.4, 0.0, 1.0, 0.6)])
    (finding,) = found(run_path, [cores(2), *[step] * 80])
    assert "17 loader workers on 2 cores; try num_workers=1; of the" in finding.message


def test_a_short_run_is_judged_with_the_cores_of_its_samples_and_the_last_batches_of_its_epochs(run_path: Path) -> None:
    """Each epoch ends with fewer batches than a row of their times has, so the evaluation after it has them."""
    train, load = phased(data_s=0.1, forward_s=0.1), (1, -1, 8, 0.004, 0.002, 0.0, 0.0)
    evaluation = phased(Mode.EVAL, data_s=0.1, forward_s=0.1, loads=[load])
    later = phased(Mode.EVAL, data_s=0.1, forward_s=0.1, loads=[(2, -1, 99, 99.0, 0.0, 0.0, 0.0)])
    epoch = [*[train] * 8, evaluation, later]
    (finding,) = found(run_path, [cores(16), *epoch * 5])
    assert "0 loader workers on 16 cores; of the 0.75 ms of a batch" in finding.message
    assert finding.causes[0] == "small_batches_in_pieces"


def test_cores_are_shared_by_ranks(run_path: Path) -> None:
    (finding,) = found(run_path, [cores(16), *steps(80, 0.1)], workers=4)
    assert "waits for data, in the mean of 4 ranks: 0 loader workers on 16 cores; try num_workers=2;" in finding.message


def test_no_more_workers_than_cores_are_advised_where_each_rank_has_one_core(run_path: Path) -> None:
    (finding,) = found(run_path, [cores(2), *steps(80, 0.1)], workers=2)
    assert "num_workers=" not in finding.message
    assert finding.what_to_try[0] == (
        "Give the DataLoader worker processes: num_workers, for all ranks together at most as many as cores"
    )


@pytest.mark.parametrize(("data_s", "severity"), [(0.005, None), (0.01, Severity.INFO), (0.03, Severity.WARNING)])
def test_the_limits_are_those_of_the_parameters(run_path: Path, data_s: float, severity: Severity | None) -> None:
    assert [each.severity for each in found(run_path, steps(80, data_s))] == ([] if severity is None else [severity])


def test_one_window_with_waits_is_no_finding(run_path: Path) -> None:
    calm, waits = phased(forward_s=0.1), phased(data_s=0.2, forward_s=0.1)
    assert found(run_path, [*[calm] * 8, *[calm] * 32, *[waits] * 32, *[calm] * 32]) == []
    (finding,) = found(run_path.with_name("two"), [*[calm] * 8, *[calm] * 32, *[waits] * 64])
    assert finding.step == 8 + 96 - 1


def test_the_loader_with_the_most_batches_is_that_of_training(run_path: Path) -> None:
    facts = [loader(2, 10, "loader"), loader(6, 500, "loader_2"), loader(1, 20, "loader_3")]
    first = [phased(Mode.EVAL, facts=each, forward_s=0.1) for each in facts]
    (finding,) = found(run_path, [*first, *[phased(data_s=0.1, forward_s=0.1)] * 80])
    assert "6 loader workers" in finding.message


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (steps(20, 0.2), "the run has 20 training steps; 24 are needed"),
        (
            [phased(forward_s=0.1)] * 80,
            "no training step read a DataLoader or a tf.data.Dataset, or copied to a device",
        ),
        (
            [phased(facts={"hidden_waits": {"loop": "Model.fit"}}, data_s=0.001, compute_s=0.1)] * 80,
            "Keras reads its data inside its compiled functions on TensorFlow, so waits are a part of phase "
            "compute; --profile-steps shows them as operator IteratorGetNext",
        ),
        (steps(24, 0.001), ""),
    ],
)
def test_a_run_that_cannot_be_judged_is_not_healthy(run_path: Path, run: list[Step], reason: str) -> None:
    (status,) = replay(build_run(run_path, run), [RuleSpec("InputBound")]).statuses
    assert (status.status, status.reason) == (Status.NOT_APPLICABLE if reason else Status.NO_ISSUES_FOUND, reason)


class Sleeping(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Batches, each of which takes a while to load."""

    def __init__(self, count: int, load: Callable[[], object]) -> None:
        self.batches, self.load = [batch() for _ in range(count)], load

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.load()
        return self.batches[index]


class TestInputBoundInRealRuns(RealRuns):
    rule = "InputBound"
    cause = "loader_without_workers"
    profiler = True
    reads_more = "no two runs take the same times"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier().append(Takes(self.clock, 0.005))
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        watch(model)
        load = partial(self.clock.advance, 0.05 if sick else 0.0002)
        for inputs, labels in DataLoader(Sleeping(25, load), batch_size=None):
            update(model, optimizer, inputs, labels)


def gpus(utilization: float, name: str = "gpu.utilization") -> Batch:
    return Batch(metrics={name: [[utilization]] * 4}, seconds=2)


def copying(copy_s: float, data_s: float = 0.0, count: int = 80) -> list[Step]:
    return [phased(data_s=data_s, copy_s=copy_s, forward_s=0.04, backward_s=0.06)] * count


def test_copies_while_the_gpu_is_idle_are_a_warning_with_figure_cure_and_gain(run_path: Path) -> None:
    (finding,) = found(run_path, [gpus(40.0), *copying(0.044)])
    assert finding.severity is Severity.WARNING
    assert finding.causes[0] == "copies_not_overlapped"
    assert finding.message == (
        "31 % of each training step is spent in copies to the device, while its GPUs are idle 60 % of the time; "
        "pin_memory=True and non_blocking=True let copies run beside the computation; steps are then at most 1.4 times "
        "as fast"
    )
    assert finding.evidence["gain"] == pytest.approx(1.44, rel=1e-4)


def test_copies_that_wait_for_a_busy_gpu_are_no_finding(run_path: Path) -> None:
    assert found(run_path, [gpus(97.0), *copying(0.4)]) == []


def test_the_gain_of_copies_is_no_more_than_the_gpu_is_idle(run_path: Path) -> None:
    (finding,) = found(run_path, [gpus(75.0), *copying(0.4)])
    assert finding.evidence["gain"] == pytest.approx(1 / 0.75, rel=1e-4)


def test_samples_of_a_gpu_that_are_no_numbers_say_nothing_about_its_load(run_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    odd = Batch(metrics={"gpu.utilization": [[nan, 75.0], [inf, -inf], [75.0, inf], [-inf, 75.0]]}, seconds=2)
    (finding,) = found(run_path, [odd, *copying(0.4)])
    assert finding.evidence["idle"] == pytest.approx(0.25)


def test_copies_beside_a_device_that_is_not_sampled_are_an_info(run_path: Path) -> None:
    (finding,) = found(run_path, copying(0.1))
    assert finding.severity is Severity.INFO
    assert finding.causes == ()
    assert "how much of that is a wait for earlier work of the device is not known" in finding.message


def test_copies_from_pinned_memory_are_no_finding(run_path: Path) -> None:
    assert found(run_path, [gpus(40.0), *copying(0.0001)]) == []


def test_waits_for_data_are_not_counted_among_copies(run_path: Path) -> None:
    waits, copies = found(run_path, [gpus(10.0), *copying(0.05, data_s=0.05)])
    assert "waits for data" in waits.message
    assert "copies to the device" in copies.message
    assert waits.value == pytest.approx(25, rel=1e-4)
    assert copies.value == pytest.approx(25, rel=1e-4)
    assert waits.evidence["gain"] == copies.evidence["gain"] == pytest.approx(0.2 / 0.15, rel=1e-4)
