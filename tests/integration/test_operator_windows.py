"""Windows of profiled operators: what is found, what is refused, and that the training run is the same."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch.profiler import profile, record_function, schedule

from watchglass import open_run
from watchglass.capture import Hook
from watchglass.capture.profiling.windows import WindowFacts
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.cli.run_contents import head_of
from watchglass.diagnose import verdict
from watchglass.records import OperatorWindow, WindowRefusal
from watchglass.run import Run
from watchglass.view import capture_lines, read_torch_trace, trace_document

Between = Callable[[int], object]


class Burn(nn.Module):
    """Sorts far more numbers than the rest of the model multiplies."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.ones(100_000).cumsum(0).sin().sort().values.mean() * 0.0


class Fails(nn.Module):
    """Raises after some of its work, if it is to."""

    fails = False

    def forward(self, x: Tensor) -> Tensor:
        y = x.tanh()
        if self.fails:
            raise ArithmeticError
        return y


def train(
    folder: Path,
    windows: str = "",
    steps: int = 30,
    between: Between = lambda step: None,
    *,
    keep_traces: bool = False,
) -> list[Tensor]:
    """Trains; ``between`` is called before each step. Returns the weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Burn(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    profiler = {"profile_steps": windows, "keep_traces": keep_traces}
    with Hook(run=folder, profiler=profiler, flight_recorder=False, strict=True) as hook:
        adapter = PyTorchAdapter(hook.port, discover=False)
        adapter.attach(model)
        for step in range(steps):
            between(step)
            optimizer.zero_grad()
            model(torch.randn(2, 4)).pow(2).mean().backward()
            optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def refusals(run: Run) -> list[Any]:
    return [(fact.data["first_step"], fact.data["reason"]) for fact in run.facts(WindowRefusal.KIND)]


def test_operators_of_whole_steps_come_by_their_time(tmp_path: Path) -> None:
    train(tmp_path / "run", "20:23,5:7")
    early, late = open_run(tmp_path / "run").operators()
    assert (early.steps, late.steps) == (range(5, 7), range(20, 23))
    assert (early["aten::sort"].calls, late["aten::sort"].calls) == (2, 3)
    assert late["Optimizer.step#SGD.step"].calls == 3  # whole steps
    assert late["aten::sort"].self_cpu_s <= late["aten::sort"].cpu_s
    assert [row.self_cpu_s for row in late.rows] == sorted((row.self_cpu_s for row in late.rows), reverse=True)
    assert late["aten::empty"].self_memory_bytes > 0
    assert not any(row.on_device for row in late.rows)
    assert repr(late).endswith("of steps 20:23 of 'worker_0', most time in " + late.rows[0].name + ")")
    frame = late.to_pandas()
    assert frame.loc["aten::sort", "calls"] == 3
    with pytest.raises(KeyError):
        late["aten::no_such"]


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have compiled something."""
    monkeypatch.setattr("watchglass.capture.pytorch.profiling.operator_windows.compiled_so_far", lambda: False)


@pytest.mark.usefixtures("nothing_compiled")
def test_operators_are_those_of_the_innermost_module_forward_and_backward(tmp_path: Path) -> None:
    train(tmp_path / "run", "20:23")
    run = open_run(tmp_path / "run")
    (window,) = run.operators()
    calls = {(row.module, row.backward, row.name): row.calls for row in window.modules}
    assert calls["1", False, "aten::sort"] == calls["0", False, "aten::addmm"] == calls["2", False, "aten::addmm"] == 3
    # The inputs of the first layer need no gradient.
    assert (calls["0", True, "aten::mm"], calls["2", True, "aten::mm"]) == (3, 6)
    assert not any("Optimizer" in name or name == "aten::pow" for _, _, name in calls)
    assert not any(row.name.startswith("module ") for row in window.rows)
    whole = sum(row.self_cpu_s for row in window.modules)
    assert 0 < whole < sum(row.self_cpu_s for row in window.rows)
    frame = window.modules_to_pandas()
    assert frame[frame["name"] == "aten::sort"]["module"].tolist() == ["1"]
    assert run.sql("select module from module_operators where operator = 'aten::sort'").to_arrow().to_pylist() == [
        {"module": "1"}
    ]


@pytest.mark.usefixtures("nothing_compiled")
def test_a_forward_that_fails_leaves_no_module_open(tmp_path: Path) -> None:
    layer = Fails()
    model = nn.Sequential(nn.Linear(4, 4), layer)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with Hook(run=tmp_path, profiler={"profile_steps": "3:6"}, strict=True) as hook:
        PyTorchAdapter(hook.port, discover=False).attach(model)
        for _ in range(8):
            layer.fails = True
            with pytest.raises(ArithmeticError):
                model(torch.ones(2, 4))
            layer.fails = False
            model(torch.ones(2, 4)).sum().backward()
            torch.ones(3).cumsum(0)  # outside of modules
            optimizer.step()
    (window,) = open_run(tmp_path).operators()
    found = {(row.module, row.name) for row in window.modules}
    assert ("1", "aten::tanh") in found
    assert not any(name == "aten::cumsum" for _, name in found)


def test_modules_of_compiled_code_are_not_observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook would make PyTorch compile it once more."""
    monkeypatch.setattr("watchglass.capture.pytorch.profiling.operator_windows.compiled_so_far", lambda: True)
    hooked: list[int] = []
    train(tmp_path / "run", "5:7", between=lambda step: hooked.append(len(_global_forward_hooks)))
    (window,) = open_run(tmp_path / "run").operators()
    assert window.modules == ()
    assert window["aten::sort"].calls == 2
    assert len(set(hooked[4:8])) == 1


def test_memory_is_that_of_the_window_by_category(tmp_path: Path) -> None:
    train(tmp_path / "run", "10:12")
    run = open_run(tmp_path / "run")
    (window,) = run.operators()
    memory = {(row.device, row.category): row.size_bytes for row in window.memory}
    numbers = 4 * 8 + 8 + 8 + 1
    assert memory["cpu", "parameters"] == memory["cpu", "gradients"] == 4 * numbers
    assert memory["cpu", "temporary"] >= 4 * 100_000  # of Burn
    rows = run.sql("select category, size_bytes from memory_categories").to_arrow().to_pylist()
    assert {row["category"]: row["size_bytes"] for row in rows} == {name: size for (_, name), size in memory.items()}


def test_a_window_states_its_cost(tmp_path: Path) -> None:
    train(tmp_path / "run", "10:12")
    (window,) = open_run(tmp_path / "run").operators()
    cost = window.cost
    assert min(cost.inside_s, cost.outside_s, cost.begin_s, cost.end_s) > 0
    assert (window.note, window.omitted) == ("", 0)


def test_a_window_changes_no_number(tmp_path: Path) -> None:
    profiled, plain = train(tmp_path / "run", "3:6"), train(tmp_path / "plain")
    assert all(map(torch.equal, profiled, plain))


def test_without_a_window_nothing_listens(tmp_path: Path) -> None:
    starts = profile.start

    def seen(folder: str, windows: str) -> set[tuple[int, bool]]:
        found = []
        hooks = _global_optimizer_post_hooks
        train(tmp_path / folder, windows, between=lambda step: found.append((len(hooks), profile.start is starts)))
        return set(found)

    ((without, unwrapped),) = seen("without", "")
    assert unwrapped
    assert not _global_forward_hooks
    # A hook more, and a wrapper while a window is open alone.
    assert seen("with", "10:12") == {(without + 1, True), (without + 1, False)}
    assert open_run(tmp_path / "without").operators() == []


def test_windows_past_the_end_are_refused_or_cut(tmp_path: Path) -> None:
    train(tmp_path / "run", "25:40,100:105")
    run = open_run(tmp_path / "run")
    (window,) = run.operators()
    assert (window.steps, window.note) == (range(25, 30), "the training run ended before its last step")
    assert refusals(run) == [(100, "the training run ended before step 100")]
    refused = "steps 100:105: the training run ended before step 100"
    assert dict(head_of(run))["not profiled"] == refused
    assert f"not profiled: {refused}" in capture_lines(verdict(run).capture)


def test_a_script_that_updates_by_itself_has_no_windows_for_that_reason(tmp_path: Path) -> None:
    weight = torch.ones(4, requires_grad=True)
    model = nn.Linear(4, 1)
    with Hook(run=tmp_path, profiler={"profile_steps": ("5:7", "100:105", "0s:300s")}, strict=True) as hook:
        PyTorchAdapter(hook.port, discover=False).attach(model)
        for _ in range(30):
            (model(torch.randn(2, 4)) * weight.sum()).pow(2).mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
    run = open_run(tmp_path)
    assert len(run.steps()) == 30
    needed = "no optimizer of PyTorch has stepped in the training thread, which a window needs"
    assert refusals(run) == [(5, needed), (100, "the training run ended before step 100"), (-1, needed)]


def test_a_script_that_profiles_keeps_its_profiler(tmp_path: Path) -> None:
    own = profile()

    def between(step: int) -> None:
        if step == 8:
            own.start()
        if step == 14:
            own.stop()

    train(tmp_path / "run", "10:12,20:22", between=between)
    run = open_run(tmp_path / "run")
    assert [window.steps for window in run.operators()] == [range(20, 22)]
    assert refusals(run) == [(10, "the script uses PyTorch's profiler itself")]
    assert {event.key: event.count for event in own.key_averages()}["aten::sort"] == 6


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_window_ends_where_the_script_begins_to_profile(tmp_path: Path, *, scheduled: bool) -> None:
    # With a schedule, it was made before the window and begins inside it.
    own = profile(schedule=schedule(wait=2, warmup=1, active=3), acc_events=True) if scheduled else profile()
    unwrapped = profile.start, profile.step

    def between(step: int) -> None:
        if step == (8 if scheduled else 12):
            own.start()
        elif scheduled and 12 <= step < 17:
            own.step()
        if step == 17:
            own.stop()
            assert (profile.start, profile.step) == unwrapped

    train(tmp_path / "run", "10:20", between=between)
    run = open_run(tmp_path / "run")
    (window,) = run.operators()
    assert (window.steps, window["aten::sort"].calls) == (range(10, 12), 2)
    assert window.note == "the script began to use PyTorch's profiler itself"
    expected = 3 if scheduled else 5
    assert {event.key: event.count for event in own.key_averages()}["aten::sort"] == expected


def test_a_profiler_that_fails_costs_the_window_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no kineto")

    monkeypatch.setattr(profile, "start", fail)
    train(tmp_path / "run", "5:7")
    run = open_run(tmp_path / "run")
    assert refusals(run) == [(5, "PyTorch's profiler did not start: RuntimeError: no kineto")]
    assert len(run.table("steps").to_arrow()) == 30


def test_damaged_windows_are_left_out() -> None:
    fact = OperatorWindow(1, 2, ()).to_fact("torch.profiler")
    assert fact.read(OperatorWindow) is not None
    for key, value in (
        ("operators", 3),
        ("first_step", "1"),
        ("end_step", 1),
        ("operators", {"name": [1]}),
    ):
        damaged = replace(fact, data={**fact.data, key: value})
        assert damaged.read(OperatorWindow) is None
    without_cost = replace(fact, data={**fact.data, "cost": None}).read(OperatorWindow)
    assert without_cost is not None
    assert math.isnan(without_cost.cost.inside_s)


def test_the_command_line_takes_windows(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "torch.set_num_threads(1)\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.01)\n"
        "for _ in range(20):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.ones(2, 4)).mean().backward()\n"
        "    optimizer.step()\n"
    )
    words = [sys.executable, "-m", "watchglass", "run", "--run", "run", "--evaluator", "none"]
    done = subprocess.run(
        [*words, "--profile-steps", "4:6", "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (window,) = open_run(tmp_path / "run").operators()
    assert (window.steps, window["aten::addmm"].calls) == (range(4, 6), 2)
    done = subprocess.run(
        [*words, "--profile-steps", "4:6,5:9", "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip().count("\n")) == (2, 0)
    assert "--profile-steps windows must not overlap but got 4:6 and 5:9; use 4:9" in done.stderr


def test_kept_traces_lie_in_the_run_and_have_the_calls_of_the_window(tmp_path: Path) -> None:
    train(tmp_path / "run", "10:12", keep_traces=True)
    run = open_run(tmp_path / "run")
    (window,) = run.operators()
    assert window.trace == "attempts/0000/traces/worker_0-00000010.json.gz"
    sums = {row.name: row for row in read_torch_trace(tmp_path / "run" / window.trace).operators()}
    # The last call of the optimizer has not ended when the window does.
    for name in ("aten::sort", "aten::addmm", "aten::pow"):
        assert sums[name].calls == window[name].calls
        assert sums[name].self_cpu_s == pytest.approx(window[name].self_cpu_s, rel=0.05, abs=1e-5)
        assert sums[name].cpu_s == pytest.approx(window[name].cpu_s, rel=0.05, abs=1e-5)
    events = trace_document(run, steps=range(8, 14))["traceEvents"]
    at = {event["name"]: event["ts"] for event in events if event["name"] in ("step 10", "step 12")}
    sorts = [event["ts"] for event in events if event["name"] == "aten::sort"]
    assert len(sorts) == 4, "each holds another of its name"
    assert all(at["step 10"] < each < at["step 12"] for each in sorts), "at the time of their steps"


def test_the_training_thread_writes_no_trace_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder's thread has no time to read the first of two windows."""
    looks = WindowFacts.read

    def read(facts: WindowFacts, **how: bool) -> None:
        if threading.current_thread() is threading.main_thread():
            looks(facts, **how)

    monkeypatch.setattr(WindowFacts, "read", read)
    train(tmp_path / "run", "10:12,13:15", keep_traces=True)
    run = open_run(tmp_path / "run")
    assert [bool(window.trace) for window in run.operators()] == [False, True]
    (fact,) = run.facts("trace_not_kept")
    assert fact.data["reason"].endswith("the next window began before it was written")


def test_traces_are_kept_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchglass.capture.profiling.kept_traces._MOST_KEPT_BYTES", 100)
    train(tmp_path / "run", "10:12", keep_traces=True)
    run = open_run(tmp_path / "run")
    (window,) = run.operators()
    assert (window.trace, len(window) > 0) == ("", True)
    (fact,) = run.facts("trace_not_kept")
    assert "all traces of a worker together have at most 100 bytes" in fact.data["reason"]


def test_no_window_begins_while_a_range_of_an_earlier_one_is_open(tmp_path: Path) -> None:
    """PyTorch would write the end of the range into memory that it has freed."""
    epoch = ExitStack()

    def between(step: int) -> None:
        if step == 7:
            epoch.enter_context(record_function("epoch"))
        if step == 16:
            epoch.close()

    train(tmp_path / "run", "6:9,12:14,18:20", between=between)
    run = open_run(tmp_path / "run")
    assert [window.steps for window in run.operators()] == [range(6, 9), range(18, 20)]
    assert refusals(run) == [(12, "the script's range 'epoch', which began in an earlier window, may be open")]


def test_ranges_around_each_step_keep_no_window_back(tmp_path: Path) -> None:
    around = ExitStack()

    def between(step: int) -> None:
        around.close()
        around.enter_context(record_function("step"))

    train(tmp_path / "run", "6:7,8:9,12:14", between=between)
    around.close()
    run = open_run(tmp_path / "run")
    assert [window.steps for window in run.operators()] == [range(6, 7), range(8, 9), range(12, 14)]
    assert [window["step"].calls for window in run.operators()] == [1, 1, 2]
