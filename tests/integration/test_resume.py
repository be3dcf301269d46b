"""A training run that is resumed from a checkpoint goes on where it was: a new attempt whose steps continue."""

from __future__ import annotations

import gc
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import watchglass
from devices.fake_device import DEVICE, FakeDevice, move
from limited import PLENTY, watching_within
from watchglass import Hook, Mode
from watchglass.capture.model_numbers import ModelNumbers
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.updates import update_counters
from watchglass.errors import InvalidValueError
from watchglass.records import SCALARS
from watchglass.run import Worker
from watchglass.run.numbering.lineage import Lineage, StepRange, trace
from watchglass.store import LocalStore, RunReader
from watchglass.tables import WorkerTables

pytestmark = pytest.mark.usefixtures("preloaded_python")

#: Steps before a training run is left, and after which it is taken up again.
LEFT, SAVED = 12, 9


@pytest.fixture(autouse=True)
def optimizers_of_this_test_only() -> None:
    """One that another test left, for instance in a cache of PyTorch's compiler, must not count as a second one."""
    gc.collect()
    gc.freeze()


def read(run: Path, name: str = "worker_0") -> dict[int, WorkerTables]:
    """What a worker recorded, by attempt."""
    tables: dict[int, WorkerTables] = {}
    reader = RunReader(LocalStore(run))
    while found := reader.poll(full=True):
        for attempt, worker, frame in found:
            if worker == name:
                tables.setdefault(attempt, WorkerTables()).ingest(frame)
    return tables


def steps(tables: WorkerTables, mode: Mode = Mode.TRAIN) -> list[int]:
    return sorted(end.mode_step for end in tables.steps.values() if end.mode is mode)


def resumed(tables: WorkerTables) -> list[dict[str, Any]]:
    return [fact.data for fact in tables.facts(-1) if fact.kind == "resumed"]


def losses(lineage: Lineage, tables: dict[int, WorkerTables]) -> dict[int, float]:
    """The loss at each step of the course."""
    found = {}
    numbers = Worker("", tables, lineage).numbers()
    for step in numbers:
        attempt, global_step = numbers.place(step)
        loss = tables[attempt].catalog.by_name("loss")
        assert loss is not None
        values = [row.value for row in tables[attempt].rows(SCALARS, global_step) if row.tensor == loss]
        found[step] = values[0]
    return found


class Training:
    """A small training that can be saved and loaded; everything in it comes from the number of its step."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = make(self.model.parameters())
        self.done = 0

    def step(self) -> float:
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(self.done))

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = (self.model(inputs) - inputs[:, :2].sin()).square().mean()
            loss.backward()
            return loss

        if isinstance(self.optimizer, torch.optim.LBFGS):
            loss = self.optimizer.step(closure)
        else:
            loss = closure()
            self.optimizer.step()
        self.done += 1
        return float(loss.detach())

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "done": self.done}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]


class Slow:
    """The number of the first step, on its way from a device: it arrives after so many looks."""

    here = False

    def __init__(self, looks: int) -> None:
        self.looks = looks

    @property
    def ready(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def resolve(self) -> Any:
        return np.float64(SAVED)


def attempt(
    make: Callable[[Any], torch.optim.Optimizer], run: Path, state: dict[str, Any] | None, count: int,
    coming: Slow | None = None, **settings: Any,
) -> tuple[dict[str, Any], list[float]]:  # fmt: skip
    """One attempt of some steps, whose first number may be coming; returns the last state but three, and the losses."""
    training, found, kept = Training(make), [], {}
    if state is not None:
        training.load(state)
    # Weights can be matched at captured steps only.
    with watching_within(PLENTY, training.model, run, **settings) as hook:
        if coming is not None:
            hook.port.resumption.settle_later(coming, "optimizer")
        for left in reversed(range(count)):
            found.append(training.step())
            if left == LEFT - SAVED:
                kept = saved(training.state())
    return kept, found


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """What comes back from a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return dict(torch.load(file, weights_only=True))


COUNTING = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "AdamW capturable": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
}  # fmt: skip
NOT_COUNTING = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
}


@pytest.mark.parametrize("name", COUNTING)
def test_an_optimizer_that_counts_shows_where_the_training_goes_on(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    state, first = attempt(COUNTING[name], run, None, LEFT)
    _, second = attempt(COUNTING[name], run, state, 6)
    tables = read(run)
    assert steps(tables[0]) == list(range(LEFT))
    assert steps(tables[1]) == list(range(SAVED, SAVED + 6))
    assert resumed(tables[0]) == []
    assert resumed(tables[1]) == [{"start_step": SAVED, "source": "optimizer"}]
    lineage = trace(tables)
    assert [str(seam) for seam in lineage.seams] == [
        "attempt 1 continues at step 9 (by the optimizer); it replaces 3 steps that were made before"
    ]
    assert losses(lineage, tables) == pytest.approx(dict(enumerate([*first[:SAVED], *second])))


@pytest.mark.parametrize("name", NOT_COUNTING)
def test_where_no_counter_shows_it_the_weights_do(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    state, first = attempt(NOT_COUNTING[name], run, None, LEFT)
    _, second = attempt(NOT_COUNTING[name], run, state, 6)
    tables = read(run)
    assert steps(tables[1]) == list(range(6))
    assert resumed(tables[1]) == [{"source": "unknown"}]
    lineage = trace(tables)
    assert lineage.parts == (StepRange(0, 0, SAVED), StepRange(1, SAVED, None, SAVED))
    assert lineage.seams[0].source == "weights"
    if name == "LBFGS":
        return  # its loss is the mean over the calls of its closure
    assert losses(lineage, tables) == pytest.approx(dict(enumerate([*first[:SAVED], *second])))


def test_a_restart_from_the_same_beginning_is_seen_as_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    attempt(COUNTING["Adam"], run, None, LEFT)
    attempt(COUNTING["Adam"], run, None, 4)
    lineage = trace(read(run))
    assert lineage.parts == (StepRange(1, 0, None),)
    assert lineage.seams[0].replaced == LEFT


def test_a_training_run_may_be_resumed_twice(tmp_path: Path) -> None:
    run, make = tmp_path / "run", COUNTING["Adam"]
    state, first = attempt(make, run, None, LEFT)
    state, second = attempt(make, run, state, LEFT)
    _, third = attempt(make, run, state, 3)
    tables = read(run)
    lineage = trace(tables)
    assert lineage.parts == (StepRange(0, 0, SAVED), StepRange(1, SAVED, 2 * SAVED), StepRange(2, 2 * SAVED, None))
    assert losses(lineage, tables) == pytest.approx(dict(enumerate([*first[:SAVED], *second[:SAVED], *third])))


def test_a_run_may_begin_with_another_runs_checkpoint(tmp_path: Path) -> None:
    state, _ = attempt(COUNTING["Adam"], tmp_path / "theirs", None, LEFT)
    attempt(COUNTING["Adam"], tmp_path / "run", state, 3)
    tables = read(tmp_path / "run")
    assert steps(tables[0]) == [9, 10, 11]
    assert resumed(tables[0]) == [{"start_step": SAVED, "source": "optimizer"}]
    assert trace(tables).seams == ()


def test_numbers_of_a_resumed_training_are_those_of_one_that_was_not(tmp_path: Path) -> None:
    """The fast path, the flight recorder and the plan follow the clock: bit for bit the same training."""
    make = COUNTING["Adam"]
    settings = {"save_interval": 8}
    state, first = attempt(make, tmp_path / "run", None, LEFT, **settings)
    _, second = attempt(make, tmp_path / "run", state, 200, **settings)
    _, whole = attempt(make, tmp_path / "whole", None, SAVED + 200, **settings)
    assert first[:SAVED] + second == whole
    tables = read(tmp_path / "run")
    lineage, once = trace(tables), read(tmp_path / "whole")
    assert losses(lineage, tables) == losses(trace(once), once)
    captured = [end.mode_step for end in tables[1].steps.values() if end.captures]
    assert captured == [SAVED, *range(16, SAVED + 200, 8)]


def test_evaluations_before_the_first_update_belong_to_the_step_before_it(tmp_path: Path) -> None:
    run, make = tmp_path / "run", COUNTING["Adam"]
    state, _ = attempt(make, run, None, LEFT)
    training = Training(make)
    training.load(state)
    with watchglass.watch(training.model, run=run):
        for _ in range(3):
            with torch.no_grad():
                training.model(torch.ones(2, 4))
            training.step()
    ends = [end for end in read(run)[1].steps.values() if end.mode is Mode.EVAL]
    assert [(end.mode_step, end.train_step) for end in ends] == [(0, SAVED - 1), (1, SAVED), (2, SAVED + 1)]


def test_what_is_said_once_of_a_training_run_is_said_of_a_resumed_one(tmp_path: Path) -> None:
    state, _ = attempt(COUNTING["Adam"], tmp_path / "run", None, LEFT)
    attempt(COUNTING["Adam"], tmp_path / "run", state, 4)
    for tables in read(tmp_path / "run").values():
        kinds = [fact.kind for fact in tables.facts()]
        assert kinds.count("model") == kinds.count("optimizer") == 1


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf"), -3.0, 1e300])
def test_what_is_no_counter_is_not_taken_for_one(nonsense: float, tmp_path: Path) -> None:
    for _ in range(2):
        training = Training(NOT_COUNTING["SGD"])
        for parameter in training.model.parameters():
            training.optimizer.state[parameter]["step"] = torch.tensor(nonsense, dtype=torch.float64)
        with watchglass.watch(training.model, run=tmp_path / "run"):
            training.step()
    tables = read(tmp_path / "run")
    assert steps(tables[1]) == [0]
    assert resumed(tables[1]) == [{"source": "unknown"}]


# Several optimizers


def test_optimizers_that_update_one_model_together_count_once(tmp_path: Path) -> None:
    def together(training: Training) -> torch.optim.Optimizer:
        other = torch.optim.Adam(training.model[2].parameters(), lr=0.01)
        training.optimizer.register_step_post_hook(lambda *_: other.step())
        return other

    assert _two_optimizers(tmp_path / "run", together) == [{"start_step": SAVED, "source": "optimizer"}]


def test_where_optimizers_may_take_turns_nothing_is_reported(tmp_path: Path) -> None:
    stranger = nn.Linear(2, 2)

    def in_turns(training: Training) -> torch.optim.Optimizer:
        return torch.optim.Adam(stranger.parameters(), lr=0.01)

    assert _two_optimizers(tmp_path / "run", in_turns) == [{"source": "unknown"}]


def test_an_optimizer_that_was_deleted_does_not_count(tmp_path: Path) -> None:
    state, _ = attempt(COUNTING["Adam"], tmp_path / "run", None, LEFT)
    gc.disable()
    try:
        before = torch.optim.Adam(nn.Linear(2, 2).parameters())
        before.param_groups[0]["owner"] = before
        del before
        attempt(COUNTING["Adam"], tmp_path / "run", state, 2)
    finally:
        gc.enable()
    assert resumed(read(tmp_path / "run")[1]) == [{"start_step": SAVED, "source": "optimizer"}]


def _two_optimizers(run: Path, add: Callable[[Training], torch.optim.Optimizer]) -> list[dict[str, Any]]:
    state: dict[str, Any] = {}
    for count in (SAVED, 3):
        training = Training(lambda p: torch.optim.Adam([*p][:2], lr=0.01))
        other = add(training)
        if state:
            training.load(state["one"])
            other.load_state_dict(state["other"])
        with watchglass.watch(training.model, run=run):
            for _ in range(count):
                training.step()
        state = saved({"one": training.state(), "other": other.state_dict()})
        del training, other
        gc.collect()
    return resumed(read(run)[1])


# Schedulers, scalers


def test_a_scheduler_that_is_stepped_at_every_update_shows_it_where_the_optimizer_does_not(tmp_path: Path) -> None:
    state: dict[str, Any] = {}
    for count in (SAVED, 3):
        training = Training(NOT_COUNTING["SGD"])
        scheduler = torch.optim.lr_scheduler.OneCycleLR(training.optimizer, 0.1, total_steps=100)
        if state:
            training.load(state["training"])
            scheduler.load_state_dict(state["scheduler"])
        with watchglass.watch(training.model, run=tmp_path / "run"):
            for _ in range(count):
                training.step()
                scheduler.step()
        state = saved({"training": training.state(), "scheduler": scheduler.state_dict()})
    assert resumed(read(tmp_path / "run")[1]) == [{"start_step": SAVED, "source": "scheduler"}]


class Start:
    """Gets the step at which a run begins."""

    found: tuple[int | None, str] | None = None

    def settle(self, start: int | None, source: str) -> None:
        self.found = start, source


def test_a_scheduler_whose_turn_comes_later_is_not_believed() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    later = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
    first = torch.optim.lr_scheduler.ConstantLR(optimizer)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [first, later], [10])
    start = Start()
    update_counters.settle_start(optimizer, Models(ModelNumbers()), start)
    assert start.found == (None, "scheduler")
    del both
    gc.collect()
    update_counters.settle_start(optimizer, Models(ModelNumbers()), start)
    assert start.found == (later.last_epoch, "scheduler")


def test_a_scheduler_that_may_count_epochs_is_not_believed(tmp_path: Path) -> None:
    training = Training(NOT_COUNTING["SGD"])
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 3)
    for _ in range(2):
        training.optimizer.step()
        scheduler.step()
        with watchglass.watch(training.model, run=tmp_path / "run"):
            training.step()
    assert resumed(read(tmp_path / "run")[1]) == [{"source": "unknown"}]


def test_a_first_update_that_a_scaler_skips_has_the_number_too(tmp_path: Path) -> None:
    state, _ = attempt(COUNTING["Adam"], tmp_path / "run", None, LEFT)
    training = Training(COUNTING["Adam"])
    training.load(state)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with watchglass.watch(training.model, run=tmp_path / "run"):
        for number in range(3):
            training.optimizer.zero_grad()
            loss = training.model(torch.ones(2, 4)).square().mean()
            scaler.scale(loss * (float("inf") if number == 0 else 1.0)).backward()
            scaler.step(training.optimizer)
            scaler.update()
    tables = read(tmp_path / "run")[1]
    assert steps(tables) == [9, 10, 11]
    assert any(fact.kind == "step_skipped" for fact in tables.facts())


# A counter that lives on a device


@pytest.mark.parametrize("looks", [0, 3, 10])
def test_steps_wait_for_a_counter_on_a_device_and_are_numbered_by_it(looks: int, tmp_path: Path) -> None:
    state, first = attempt(COUNTING["Adam"], tmp_path / "run", None, LEFT)
    _, second = attempt(COUNTING["Adam"], tmp_path / "run", state, 40, Slow(looks))
    tables = read(tmp_path / "run")
    assert steps(tables[1]) == list(range(SAVED, SAVED + 40))
    assert resumed(tables[1]) == [{"start_step": SAVED, "source": "optimizer"}]
    assert losses(trace(tables), tables) == pytest.approx(dict(enumerate([*first[:SAVED], *second])))


def test_a_training_run_that_ends_before_its_counter_is_here_waits_for_it(tmp_path: Path) -> None:
    state, _ = attempt(COUNTING["Adam"], tmp_path / "run", None, LEFT)
    attempt(COUNTING["Adam"], tmp_path / "run", state, 5, Slow(10))
    assert steps(read(tmp_path / "run")[1]) == list(range(SAVED, SAVED + 5))


def test_a_counter_that_never_comes_is_given_up(tmp_path: Path) -> None:
    state, _ = attempt(COUNTING["Adam"], tmp_path / "run", None, LEFT)
    attempt(COUNTING["Adam"], tmp_path / "run", state, 80, Slow(1 << 30))
    tables = read(tmp_path / "run")[1]
    assert steps(tables) == list(range(80))
    assert resumed(tables) == [{"source": "unknown"}]


def test_a_device_is_not_waited_for(tmp_path: Path) -> None:
    waited: list[str] = []
    with FakeDevice(waited.append):
        counters: list[Tensor] = []
        for count in (SAVED, 3):
            model = move(nn.Linear(4, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for parameter, counter in zip(model.parameters(), counters, strict=False):
                optimizer.state[parameter]["step"] = counter
            optimizer.register_step_post_hook(_count_on_device)
            inputs = torch.ones(8, 4, device=DEVICE)
            with watchglass.watch(model, run=tmp_path / "run"):
                waited.clear()
                for _ in range(count):
                    optimizer.zero_grad()
                    model(inputs).square().mean().backward()
                    optimizer.step()
                assert waited == []
            counters = [optimizer.state[parameter]["step"] for parameter in model.parameters()]
            del model, optimizer
            gc.collect()
    assert resumed(read(tmp_path / "run")[1]) == [{"start_step": SAVED, "source": "optimizer"}]


def _count_on_device(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        state = optimizer.state[parameter]
        state["step"] = state["step"] + 1 if "step" in state else torch.ones((), device=DEVICE)


# Loops by hand, XGBoost


def test_a_manual_loop_says_itself_where_it_goes_on(tmp_path: Path) -> None:
    for begin, count in ((None, 5), (3, 4)):
        with Hook(run=tmp_path / "run") as hook:
            if begin is not None:
                hook.resume(begin)
            for number in range(count):
                with hook.step("train"):
                    hook.save_scalar("loss", float(number))
    tables = read(tmp_path / "run")
    assert steps(tables[1]) == [3, 4, 5, 6]
    assert resumed(tables[1]) == [{"start_step": 3, "source": "given"}]
    assert trace(tables).parts == (StepRange(0, 0, 3), StepRange(1, 3, None))


def test_what_is_given_comes_before_what_is_found(tmp_path: Path) -> None:
    state, _ = attempt(COUNTING["Adam"], tmp_path / "run", None, LEFT)
    training = Training(COUNTING["Adam"])
    training.load(state)
    with watchglass.watch(training.model, run=tmp_path / "run") as hook:
        hook.resume(100)
        training.step()
    assert steps(read(tmp_path / "run")[1]) == [100]


@pytest.mark.parametrize("step", [-1, 1.5, True, "9", 1 << 53])
def test_a_number_that_is_none_is_refused(step: Any, tmp_path: Path) -> None:
    with Hook(run=tmp_path / "run") as hook, pytest.raises(InvalidValueError, match="a number of updates"):
        hook.resume(step)


def test_it_is_too_late_after_the_first_update(tmp_path: Path) -> None:
    with Hook(run=tmp_path / "run") as hook:
        with hook.step("train"):
            pass
        with pytest.raises(InvalidValueError, match="before the first update"):
            hook.resume(5)
    hook.resume(5)  # over: nothing is watched any more


def test_a_booster_that_is_trained_on_goes_on_where_it_was(tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(60, 3))
    data = xgboost.DMatrix(inputs, inputs[:, 0] + 0.1 * rng.normal(size=60))
    model = None
    for rounds in (7, 4):
        callback = watchglass.callback("xgboost", run=tmp_path / "run")
        model = xgboost.train({}, data, rounds, evals=[(data, "train")], verbose_eval=False,
                              xgb_model=model, callbacks=[callback])  # fmt: skip
    tables = read(tmp_path / "run")
    assert steps(tables[1]) == [7, 8, 9, 10]
    assert resumed(tables[1]) == [{"start_step": 7, "source": "booster"}]
    assert trace(tables).seams[0].missing == trace(tables).seams[0].replaced == 0


# Whole processes

SCRIPT = """
import os, signal, sys, time
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
begin, kill_at, checkpoint = 0, int(sys.argv[1]), sys.argv[2]
if os.path.exists(checkpoint):
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["step"]
for step in range(begin, 60):
    if step % 8 == 0 and step > begin:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, checkpoint)
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
    loss = (model(inputs) - inputs[:, :2]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, float(loss.detach()), flush=True)
    time.sleep(0.02)
    if step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_training_run_that_is_killed_and_run_again_is_one_course(tmp_path: Path) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT)
    expected: dict[int, float] = {}
    for kill_at in (21, 43, -1):
        command = [sys.executable, "-m", "watchglass", "run", "--run", str(run), str(script), str(kill_at)]
        done = subprocess.run(
            [*command, str(tmp_path / "checkpoint.pt")], capture_output=True, text=True, timeout=120, cwd=tmp_path
        )
        lines = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
        rows = {int(words[0]): float(words[1]) for words in lines if len(words) == 2}
        assert rows, done.stderr
        expected = {step: loss for step, loss in expected.items() if step < min(rows)} | rows
    tables = read(run)
    lineage = trace(tables)
    assert lineage.parts == (StepRange(0, 0, 16), StepRange(1, 16, 40), StepRange(2, 40, None))
    assert [(seam.step, seam.source, seam.replaced) for seam in lineage.seams] == [
        (16, "optimizer", 6),
        (40, "optimizer", 4),
    ]
    assert losses(lineage, tables) == pytest.approx(expected, rel=1e-6)
    assert sorted(expected) == list(range(60))


RANKS = """
import os, signal, sys, time
import torch
from torch import nn

# Without a process group: its own ways of starting again are not at issue.
rank = int(os.environ["RANK"])
checkpoint = sys.argv[1] + str(rank)
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
begin = 0
if os.path.exists(checkpoint):
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["step"]
for step in range(begin, 40):
    if step == 20 and not begin:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, checkpoint)
    loss = model(torch.full((4, 4), float(step + rank))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    if step == 39 and rank == 0 and not begin:
        open(sys.argv[1] + ".ready", "w").close()
        time.sleep(600)
    if step == 30 and rank == 1 and not begin:
        while not os.path.exists(sys.argv[1] + ".ready"):
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_ranks_that_torchrun_starts_again_go_on_together(tmp_path: Path) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(RANKS)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "watchglass", "run", "--run", str(run), *torchrun, str(script), str(tmp_path / "c.pt")],
        capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for worker in ("worker_0", "worker_1"):
        tables = read(run, worker)
        assert steps(tables[1]) == list(range(20, 40))
        assert resumed(tables[1]) == [{"start_step": 20, "source": "optimizer"}]
        assert trace(tables).parts == (StepRange(0, 0, 20), StepRange(1, 20, None))
