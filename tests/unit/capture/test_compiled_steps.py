"""Steps that are calls of compiled functions: rows where nothing is due, twins where something is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import watchglass
from watchglass import Mode, ModuleKind, Role
from watchglass.capture.compiled.collecting import Collected, Collector, ValuePart
from watchglass.capture.compiled.delivery import StepDelivery
from watchglass.capture.compiled.steps import CompiledSteps
from watchglass.capture.compiled.twin import Repetition, Twin
from watchglass.capture.module_places import ParameterPlace, Place
from watchglass.control import Commit, Stop
from watchglass.errors import TrainingStopped
from watchglass.records import facts

PLACE = Place("dense", "Dense", 1, kind=ModuleKind.LINEAR)
KERNEL = ParameterPlace("dense.kernel", "kernel", PLACE, unit_axis=-1)


def _train(path: Path, steps: int, **settings: Any) -> watchglass.Run:
    """A loop whose loss is the number of its step; captured steps have the tensors of one layer."""
    collector = Collector()
    with watchglass.Hook(path, strict=True, **settings) as hook:
        compiled = CompiledSteps(hook.port)
        delivery = StepDelivery(hook.port, "toy", compiled)
        begin, end, save = map(hook.port.guarded, (compiled.begin, compiled.end, delivery.save))
        kernel = np.ones((3, 2), np.float32)
        for number in range(steps):
            step = begin()
            after = kernel - 0.5
            if step is not None:
                with collector.frame() as values:
                    for part, value in (
                        (ValuePart.BEFORE, kernel), (ValuePart.AFTER, after), (ValuePart.GRADIENT, kernel * 2),
                    ):  # fmt: skip
                        collector.add(Collected(part, KERNEL.name, PLACE, KERNEL), value)
                    collector.add(Collected(ValuePart.OUTPUT, "", PLACE), np.zeros((4, 2), np.float32))
                save(step, values, collector.known)
            kernel = after
            end({"loss": float(number)}, 0.25)
    return watchglass.open_run(path)


def test_every_step_has_its_loss_and_due_ones_their_tensors(tmp_path: Path) -> None:
    run = _train(tmp_path / "run", 40, save_interval=10)
    steps, losses = run.scalars("loss")
    assert list(steps) == list(range(40))
    assert list(losses) == list(range(40))
    assert set(run.scalars("learning_rate")[1]) == {0.25}
    for name in ("dense.kernel", "gradient/dense.kernel", "update/dense.kernel", "dense.output"):
        assert run.tensor(name).reductions("count")[0].tolist() == [0, 10, 20, 30], name
    assert run.tensor("dense.kernel").reductions("mean")[1][1] == pytest.approx(1 - 10 * 0.5)
    assert set(run.tensor("update/dense.kernel").reductions("mean")[1]) == {-0.5}
    rows = {info.name: info for info in run.worker().tables.catalog}
    assert rows["dense.kernel"].unit_axis == 1
    assert rows["dense.kernel"].role is Role.WEIGHT
    assert rows["dense.output"].module_kind is ModuleKind.LINEAR
    norms = run.scalars("gradient_norm")
    assert norms[0].tolist() == [0, 10, 20, 30]
    assert norms[1][0] == pytest.approx(2 * np.sqrt(6))


def test_an_evaluation_between_rows_is_a_step_of_its_own(tmp_path: Path) -> None:
    with watchglass.Hook(tmp_path / "run", strict=True, save_interval=1000) as hook:
        compiled = CompiledSteps(hook.port)
        for number in range(30):
            compiled.begin()
            compiled.end({"loss": float(number)})
            if number % 10 == 9:
                compiled.begin(Mode.EVAL)
                compiled.end({"loss": 0.5})
    run = watchglass.open_run(tmp_path / "run")
    assert run.steps() == list(range(30))
    ends = run.worker().tables.steps.values()
    assert [end.train_step for end in ends if end.mode is Mode.EVAL] == [9, 19, 29]
    assert list(run.scalars("loss", mode="eval")[1]) == [0.5] * 3


@pytest.mark.parametrize("told", [True, False])
def test_models_that_take_turns_have_their_own_rows_and_captured_steps(tmp_path: Path, told: bool) -> None:
    with watchglass.Hook(tmp_path / "run", strict=True, save_interval=5) as hook:
        compiled = CompiledSteps(hook.port)
        captured: dict[int, list[int]] = {0: [], 1: []}
        for number in range(60):
            model = number % 3 % 2
            step = compiled.begin(model=model) if told else compiled.begin()
            if step is not None:
                captured[model].append(number)
            compiled.end({"loss": float(model)}, 0.25, model=model)
    run = watchglass.open_run(tmp_path / "run")
    assert set(run.scalars("loss")[1]) == {0.0}
    assert list(run.scalars("model_2/loss")[0]) == list(range(1, 60, 3))
    if told:
        assert captured == {0: [0, 8, 15, 23, 30, 38, 45, 53], 1: [1, 16, 31, 46]}


def test_a_stop_ends_rows_before_the_agreed_step(tmp_path: Path) -> None:
    with watchglass.Hook(tmp_path / "run", save_interval=1000) as hook:
        compiled = CompiledSteps(hook.port)

        def train() -> None:
            for number in range(60):
                if number == 40:
                    hook.port.changes.add(Commit(45, Stop("requested by a test")))
                compiled.begin()
                compiled.end({"loss": 1.0})

        with pytest.raises(TrainingStopped):
            train()
    assert watchglass.open_run(tmp_path / "run").steps() == list(range(45))


def test_a_call_that_raises_leaves_no_half_step(tmp_path: Path) -> None:
    with watchglass.Hook(tmp_path / "run", strict=True, save_interval=1) as hook:
        compiled = CompiledSteps(hook.port)
        compiled.begin()
        compiled.end({"loss": 1.0})
        compiled.begin()
        compiled.fail()
        compiled.begin()
        compiled.end({"loss": 3.0})
    run = watchglass.open_run(tmp_path / "run")
    assert list(run.scalars("loss")[1]) == [1.0, 3.0]


def test_a_twin_that_cannot_be_traced_is_given_up_for_good(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    traced = []

    def trace(*args: Any) -> None:
        traced.append(args)
        raise RuntimeError("a tracer has leaked")

    with watchglass.Hook(tmp_path / "run", save_interval=1) as hook, caplog.at_level(logging.WARNING):
        twin = Twin(hook.port, "train_step", trace, lambda *args: (args, {}))
        assert not twin.ready(1)
        assert not twin.ready(2)
        with hook.step():
            pass
    assert traced == [(1,)]
    assert [each.message for each in caplog.records if "train_step" in each.message] == [
        "watchglass: tensors of train_step are not captured, its loss is: tracing it a second time raised "
        "RuntimeError: a tracer has leaked"
    ]
    (fact,) = watchglass.open_run(tmp_path / "run").facts(facts.NotCapturable)
    assert fact.modules == ("train_step",)


class Counting(Repetition):
    """Functions that count their calls in place."""

    def __init__(self) -> None:
        self.count, self.possible = 0, True

    def is_possible(self) -> bool:
        return self.possible

    def state(self) -> int:
        return self.count

    def restore(self, state: int) -> None:
        self.count = state

    def are_equal(self, one: Any, other: Any) -> bool:
        return bool(one == other)


def _called(path: Path, calls: int, rounds: bool = False, once: bool = False) -> tuple[list[float], list[str], int]:
    """What a training gets of a function and its twin, which of the two have run, and the state after it."""
    ran: list[str] = []
    counting = Counting()
    counting.possible = not once

    def function(step: float) -> float:
        ran.append("itself")
        counting.count += 1
        return step

    def twin(step: float) -> tuple[float, dict[str, Any]]:
        ran.append("twin")
        counting.count += 1
        return step + (1e-7 if rounds else 0.0), {"loss/loss": step}

    with watchglass.Hook(path, strict=True) as hook:
        both = Twin(hook.port, "train_step", lambda step: None, twin, counting)
        results = [both(function, float(step)) for step in range(calls)]
    assert [values for _, values in results] == [{"loss/loss": float(step)} for step in range(calls)]
    return [result for result, _ in results], ran, counting.count


def test_a_twin_runs_alone_once_it_was_equal_in_four_calls(tmp_path: Path) -> None:
    assert _called(tmp_path, 6) == ([0, 1, 2, 3, 4, 5], ["twin", "itself"] * 4 + ["twin"] * 2, 6)


def test_a_twin_that_rounds_otherwise_never_runs_alone(tmp_path: Path) -> None:
    assert _called(tmp_path, 6, rounds=True) == ([0, 1, 2, 3, 4, 5], ["twin", "itself"] * 6, 6)


def test_of_a_function_that_prints_the_twin_alone_runs(tmp_path: Path) -> None:
    assert _called(tmp_path, 3, once=True) == ([0, 1, 2], ["twin"] * 3, 3)


def test_what_a_twin_raises_the_function_raises_on_the_state_before_it(tmp_path: Path) -> None:
    counting = Counting()

    def fails(step: int) -> Any:
        counting.count += step
        raise ValueError(f"step {step} after {counting.count - step}")

    with watchglass.Hook(tmp_path, strict=True) as hook:
        twin = Twin(hook.port, "train_step", lambda step: None, fails, counting)
        with pytest.raises(ValueError, match="step 2 after 0"):
            twin(fails, 2)
    assert counting.count == 2


def test_values_of_inner_frames_reach_the_outer_one_with_their_meaning() -> None:
    collector = Collector()
    loss = Collected(ValuePart.LOSS, "loss")
    with collector.frame() as outer:
        with collector.frame() as inner:
            collector.add(loss, 1.0)
            collector.add(loss, 2.0)
        collector.absorb({key: value * 10 for key, value in inner.items()})
        with collector.closed():
            assert not collector.active
    assert outer == {"loss/loss": 10.0, "loss/loss#2": 20.0}
    assert {collector.known[key] for key in outer} == {loss}
    assert not collector.active


def test_a_key_means_the_same_in_the_traces_of_all_functions() -> None:
    collector = Collector()
    whats = [Collected(ValuePart.LOSS, "loss", model=number) for number in (0, 1)]
    traces = []
    for what in (*whats, *whats):
        with collector.frame() as values:
            collector.add(what, 1.0)
        traces.append(values)
    assert traces[:2] == traces[2:]
    assert [collector.known[key].model for values in traces for key in values] == [0, 1, 0, 1]


class Computed:
    """What a call returned, and when that is there."""

    def __init__(self) -> None:
        self.ready = False

    def is_ready(self) -> bool:
        return self.ready


@pytest.mark.parametrize("over", [False, True], ids=["computing", "done"])
def test_a_wait_for_data_counts_where_the_step_before_is_over(tmp_path: Path, over: bool) -> None:
    now_ns, computed = [0], Computed()
    with watchglass.Hook(tmp_path / "run", strict=True, profiler=True) as hook:
        hook.port.phase_clock = lambda: now_ns[0]
        compiled = CompiledSteps(hook.port)
        for _ in range(2):
            compiled.waits()
            now_ns[0] += 10**9
            computed.ready = over
            compiled.goes_on()
            compiled.begin()
            now_ns[0] += 2 * 10**9
            computed.ready = False
            compiled.returned(computed)
            compiled.end({"loss": 1.0})
    phases = watchglass.open_run(tmp_path / "run").phases()
    assert phases["data"][1] == (1 if over else 0)
    assert phases["compute"][1] == (2 if over else 3)


def test_after_a_call_that_computes_on_only_work_of_the_script_is_no_computation(tmp_path: Path) -> None:
    now_ns, computed = [0], Computed()
    with watchglass.Hook(tmp_path / "run", strict=True, profiler=True) as hook:
        hook.port.phase_clock = lambda: now_ns[0]
        compiled = CompiledSteps(hook.port)
        for _ in range(2):
            compiled.begin()
            compiled.returned(computed)
            compiled.end({"loss": 1.0})
            now_ns[0] += 3600 * 10**9  # the script waits, as by float(loss)
            computed.ready = True
        compiled.begin()
        compiled.end({"loss": 1.0})
    phases = watchglass.open_run(tmp_path / "run").phases()
    assert phases["compute"][1] == pytest.approx(3600, rel=1e-3)
    assert 0 <= phases["other"][1] < 60
