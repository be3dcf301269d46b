"""A running job that is asked to profile steps: what it records, what it refuses, and that it trains as before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest
import torch
from tests.waiting import until
from torch import nn
from torch.profiler import profile

from watchglass import Mode, open_run
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.errors import EndOfRunError, InvalidValueError, MissingFileError, ProfileRefusedError
from watchglass.records import NOTES
from watchglass.run import Operators, ProfileRequest
from watchglass.store import LocalStore, StreamWriter

Between = Callable[[Hook, int], object]


def train(folder: Path, between: Between = lambda hook, step: None, steps: int = 30, **settings: Any) -> list[Any]:
    """Trains; ``between`` is called before each step. Returns the weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with Hook(run=folder, flight_recorder=False, strict=True, **settings) as hook:
        adapter = PyTorchAdapter(hook.port, discover=False)
        adapter.attach(model)
        for step in range(steps):
            between(hook, step)
            optimizer.zero_grad()
            model(torch.randn(2, 4)).pow(2).mean().backward()
            optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


class Asking:
    """Asks before one step, and lets the training run go on once it has heard the request."""

    def __init__(self, at: int = 10, steps: int = 2, **more: Any) -> None:
        self.at, self.steps, self.more = at, steps, more
        self.requests: list[ProfileRequest[Operators]] = []

    def __call__(self, hook: Hook, step: int) -> None:
        if step != self.at:
            return
        hook.flush()
        run = until(lambda: open_run(hook.port.config.run), despite=(MissingFileError,))
        run.wait_for_steps(step - 2)
        self.requests.append(run.profile(self.steps, **self.more))
        until(lambda: hook.port.changes.pending)

    @property
    def request(self) -> ProfileRequest[Operators]:
        return self.requests[0]


def test_a_script_that_updates_by_itself_refuses_within_some_steps(tmp_path: Path) -> None:
    asking, refused = Asking(), []
    model = nn.Linear(4, 1)
    with Hook(run=tmp_path / "run", flight_recorder=False, strict=True) as hook:
        PyTorchAdapter(hook.port, discover=False).attach(model)
        for step in range(40):
            asking(hook, step)
            if step == 35:
                with pytest.raises(ProfileRefusedError, match="no optimizer of PyTorch has stepped") as caught:
                    asking.request.wait(10)
                refused.append(caught)
            model(torch.randn(2, 4)).pow(2).mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * (parameter.grad if parameter.grad is not None else 0)
                    parameter.grad = None
    assert refused


def test_the_next_steps_are_profiled_and_no_number_changes(tmp_path: Path) -> None:
    asking = Asking()
    profiled, plain = train(tmp_path / "run", asking), train(tmp_path / "plain")
    assert all(map(torch.equal, profiled, plain))
    (window,) = asking.request.wait()
    # On the fast path the first step after the request is the last one on it.
    assert window.steps in (range(11, 13), range(12, 14))
    assert window["aten::addmm"].calls == 4
    assert window.cost.inside_s > 0
    assert window.cost.outside_s > 0
    assert (window.note, window.request) == ("", 0)


def test_a_later_start_is_kept_and_windows_lie_a_step_apart(tmp_path: Path) -> None:
    first, second = Asking(start=15), Asking(at=11, start=17)

    def between(hook: Hook, step: int) -> None:
        first(hook, step)
        second(hook, step)

    train(tmp_path / "run", between, profiler={"profile_steps": "21:23"})
    assert [(each.steps, each.request) for each in open_run(tmp_path / "run").operators()] == [
        (range(15, 17), 0), (range(18, 20), 1), (range(21, 23), None),
    ]  # fmt: skip


def test_without_a_request_nothing_listens_and_the_steps_after_a_window_are_as_those_before(tmp_path: Path) -> None:
    from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

    asking, numbers = Asking(), []
    unwrapped = profile.start

    def between(hook: Hook, step: int) -> None:
        numbers.append(len(hooks))
        asking(hook, step)

    train(tmp_path / "run", between)
    assert set(numbers[:11]) == {numbers[0]}
    assert max(numbers) == numbers[0] + 1
    assert profile.start is unwrapped


@pytest.mark.parametrize(
    ("settings", "asking", "reason"),
    [
        (
            {"profiler": False},
            Asking(),
            "the profiler is off, by --no-profiler, profiler=False or watchglass profile --off",
        ),
        (
            {"profiler": {"profile_steps": "15:20"}},
            Asking(steps=6, start=14),
            "it would overlap the window 15:20 of PyTorch's profiler",
        ),
        (
            {"profiler": {"python_profile": "15:20"}},
            Asking(steps=6, start=14),
            "it would overlap the window 15:20 of cProfile",
        ),
        ({"profiler": {"python_profile": "5:20"}}, Asking(start=16), "it would overlap the window 5:20 of cProfile"),
        ({}, Asking(start=100), "the training run ended before the window began"),
        ({}, Asking(at=29), "the training run ended before"),  # the window began, or its last step on the full path
    ],
)
def test_refusals_are_stated_in_the_run(tmp_path: Path, settings: dict[str, Any], asking: Asking, reason: str) -> None:
    train(tmp_path / "run", asking, **settings)
    with pytest.raises(ProfileRefusedError, match=reason):
        asking.request.wait()
    (refusal,) = open_run(tmp_path / "run").facts("window_refused")
    assert reason in refusal.data["reason"]
    assert len(open_run(tmp_path / "run").steps()) == 30


def test_a_script_that_profiles_keeps_its_profiler(tmp_path: Path) -> None:
    own, asking = profile(), Asking()

    def between(hook: Hook, step: int) -> None:
        if step == 5:
            own.start()
        asking(hook, step)
        if step == 20:
            own.stop()

    train(tmp_path / "run", between)
    with pytest.raises(ProfileRefusedError, match="the script uses PyTorch's profiler itself"):
        asking.request.wait()
    assert {event.key: event.count for event in own.key_averages()}["aten::addmm"] == 30


def test_steps_of_a_loop_that_no_adapter_knows_are_refused(tmp_path: Path) -> None:
    asking = Asking()
    with Hook(run=tmp_path / "run", flight_recorder=False, strict=True) as hook:
        for step in range(12):
            asking(hook, step)
            with hook.step(Mode.TRAIN):
                hook.save_scalar("loss", 1.0)
    with pytest.raises(ProfileRefusedError, match="no loop has been seen whose training steps could be profiled so"):
        asking.request.wait()


class Changing:
    """Changes settings before some steps, and lets the training run go on once it has read them."""

    def __init__(self, changes: dict[int, dict[str, Any]]) -> None:
        self.changes = changes

    def __call__(self, hook: Hook, step: int) -> None:
        if step in self.changes:
            hook.flush()
            run = until(lambda: open_run(hook.port.config.run), despite=(MissingFileError,))
            run.wait_for_steps(step - 2)
            run.change_profiler(**self.changes[step])
            until(lambda: hook.port.changes.pending)


def test_modules_are_timed_between_two_requests_alone(tmp_path: Path) -> None:
    changing = Changing({10: {"module_times": True}, 40: {"module_times": False}})
    profiled = train(tmp_path / "run", changing, steps=80, save_interval=1000)
    run = open_run(tmp_path / "run")
    times = run.module_times()
    assert len(times.steps) >= 2
    assert all(10 <= step <= 41 for step in times.steps)
    assert [
        (fact.data["module_times"], fact.data["step"] in (at, at + 1))
        for fact, at in zip(run.facts("profiler_changed"), (10, 40), strict=True)
    ] == [(True, True), (False, True)]
    assert all(map(torch.equal, profiled, train(tmp_path / "plain", steps=80)))


def test_windows_are_refused_while_the_profiler_is_off(tmp_path: Path) -> None:
    changing, first, second = Changing({10: {"enabled": False}, 20: {"enabled": True}}), Asking(at=14), Asking(at=23)

    def between(hook: Hook, step: int) -> None:
        if step == 9:  # there is no sampler here
            with closing(StreamWriter(LocalStore(tmp_path / "run"), 0, "system")) as stream:
                stream.write({NOTES: [(monotonic_ns(), "test", "began", "")]})
        for each in (changing, first, second):
            each(hook, step)

    train(tmp_path / "run", between)
    run = open_run(tmp_path / "run")
    (refusal,) = run.facts("window_refused")
    assert refusal.data["reason"].startswith("the profiler is off")
    assert [window.request for window in run.operators()] == [3]


def test_a_run_without_a_sampler_gets_none_by_request(tmp_path: Path) -> None:
    with Hook(run=tmp_path / "run", flight_recorder=False, strict=True) as hook:
        with hook.step(Mode.TRAIN):
            hook.save_scalar("loss", 1.0)
        hook.flush()
        run = until(lambda: open_run(hook.port.config.run), despite=(MissingFileError,))
        run.wait_for_steps(0)
        for settings in ({"enabled": True}, {"sample_interval_s": 1.0}):
            with pytest.raises(InvalidValueError, match="has no sampler, which only begins with the run"):
                run.change_profiler(**settings)
        with pytest.raises(InvalidValueError, match="profile_steps is unknown"):
            run.change_profiler(profile_steps="1:2")


SCRIPT = """
import os, torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while not os.path.exists("enough"):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
print("trained")
"""


@pytest.mark.usefixtures("preloaded_python")
def test_a_job_is_profiled_from_another_terminal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "watchglass"]

    def call(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*words, *more], cwd=tmp_path, capture_output=True, text=True, check=False)

    job = subprocess.Popen(
        [*words, "run", "--run", "run", "--evaluator", "none", "train.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until(lambda: (tmp_path / "run" / "run.json").exists())
        until(lambda: open_run(tmp_path / "run").steps())
        done = call("profile", "run", "--steps", "3")
        assert (done.returncode, "will be profiled, from step" in done.stderr) == (0, True), done.stderr
        assert "aten::addmm" in done.stdout
        assert "of worker_0, per step; a step took" in done.stdout
        functions = call("profile", "run", "--steps", "2", "--python")
        assert (functions.returncode, "Python functions of training steps" in functions.stdout) == (0, True)
        assert {"function", "place", "share"} <= set(functions.stdout.split())
        told = json.loads(call("profile", "run", "--steps", "2", "--json").stdout)
        (window,) = told["windows"]
        assert (window["worker"], window["steps"][1] - window["steps"][0], told["refused"]) == ("worker_0", 2, {})
        assert "aten::addmm" in {row["name"] for row in window["rows"]}
        changed = call("profile", "run", "--sample-interval", "0.1", "--module-times", "on")
        assert (changed.returncode, changed.stdout) == (0, ""), changed.stderr
        assert "run: sample_interval_s = 0.1, module_times = true, from step " in changed.stderr
        until(lambda: "interval" in open_run(tmp_path / "run").table("notes").to_arrow()["event"].to_pylist())
        assert call("profile", "run", "--start", "10000000", "--no-wait").returncode == 0
        again = call("profile", "run", "--start", "10000003")
        assert (again.returncode, again.stderr.count("\n")) == (2, 1)
        assert "steps 10000003:10000008 overlap steps 10000000:10000005, which were requested before" in again.stderr
    finally:
        (tmp_path / "enough").touch()
        out, err = job.communicate()
    assert (job.returncode, out) == (0, "trained\n"), err
    ended = call("profile", "run")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "run has ended, so nothing of it can be profiled; a new run can be" in ended.stderr
    run = open_run(tmp_path / "run")
    assert [len(window.steps) for window in run.operators()] == [3, 2]
    with pytest.raises(EndOfRunError):
        run.profile()
    with pytest.raises(EndOfRunError):
        run.change_profiler(module_times=False)
    assert len(run.python_profiles()) == 1
