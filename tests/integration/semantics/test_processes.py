"""Notebooks, workers and children: what is watched, what is not, and that nothing notices."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import watchglass
from train_twice import ALL, STEPS, Watch, batch, l2, losses, train, trained_twice
from watchglass import Mode, open_run

pytestmark = pytest.mark.usefixtures("preloaded_python")


class Interruptible(nn.Module):
    """A model in whose forward or backward somebody may press ctrl-c."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 16), nn.Linear(16, 4)
        self.press: str = ""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        if self.press == "backward":
            x.register_hook(self.interrupt)
        if self.press == "forward":
            self.interrupt()
        return self.second(x)

    def interrupt(self, gradient: Any = None) -> None:
        self.press = ""
        raise KeyboardInterrupt


class InterruptibleSGD(torch.optim.Optimizer):
    """An optimizer that may be interrupted when it has changed half of the parameters."""

    press = False

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure is not None else None
        with torch.no_grad():
            for index, parameter in enumerate(self.param_groups[0]["params"]):
                parameter.sub_(parameter.grad, alpha=0.05)
                if self.press and index == 1:
                    self.press = False
                    raise KeyboardInterrupt
        return loss


@pytest.mark.parametrize("when", [3, 20], ids=["early", "on the fast path"])
@pytest.mark.parametrize("closure", [False, True], ids=["plain", "closure"])
@pytest.mark.parametrize("where", ["forward", "backward", "step"])
def test_a_notebook_cell_that_was_interrupted_is_run_again(
    tmp_path: Path, where: str, closure: bool, when: int
) -> None:
    def training(watch: Watch) -> Any:
        model = Interruptible()
        optimizer = InterruptibleSGD(model.parameters())
        watch(model)
        seen: list[float] = []

        def cell(numbers: range) -> None:
            for number in numbers:
                inputs, labels = batch(number)

                def backward(inputs: Tensor = inputs, labels: Tensor = labels) -> Tensor:
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(inputs), labels)
                    loss.backward()
                    seen.append(loss.item())
                    return loss

                if closure:
                    optimizer.step(backward)
                else:
                    backward()
                    optimizer.step()

        cell(range(when))
        for _ in range(2):
            if where == "step":
                optimizer.press = True
            else:
                model.press = where
            with pytest.raises(KeyboardInterrupt):
                cell(range(when, when + 1))
        cell(range(when, 2 * STEPS))
        return seen, model

    unheard = where == "step" and not closure and when == 20
    run = trained_twice(tmp_path, training, same_steps=not unheard)
    # The interrupted ones are steps of their own where their update has begun; while steps alike are not captured,
    # only the end of an update is heard, and the first of them is part of the next step: that is not like the others.
    extra = 2 if where == "step" or closure else 0
    if unheard:
        assert open_run(tmp_path / "sparse").steps() == list(range(2 * STEPS + 1))
    assert run.steps() == list(range(2 * STEPS + extra))
    later = list(range(when + extra + 1, 2 * STEPS + extra))
    assert [step for step in l2(run, "gradient/first.weight") if step > when + extra] == later
    assert [step for step in l2(run, "update/first.weight") if step > when + extra] == later
    assert list(run.scalars("loss")[0])[-len(later) :] == later


def test_watching_twice_is_watching_once(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        model = Interruptible()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        seen = []
        for number in ALL:
            if number % 8 == 0:  # a cell that is run again
                watch(model)
            seen.append(train(model, optimizer, number))
        return seen, model

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert list(l2(run, "gradient/first.weight")) == list(l2(run, "first.output")) == ALL
    assert list(run.tensor("first.output").reductions("count")[1]) == [16 * 16] * STEPS


def test_a_training_run_may_be_watched_into_two_runs_one_after_the_other_or_at_once(tmp_path: Path) -> None:
    model = Interruptible()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    first = watchglass.watch(model, run=tmp_path / "first", save_interval=1, strict=True)
    expected = [train(model, optimizer, number) for number in range(4)]
    second = watchglass.watch(model, run=tmp_path / "second", save_interval=1, strict=True)
    expected += [train(model, optimizer, number) for number in range(4, 8)]
    first.close()
    expected += [train(model, optimizer, number) for number in range(8, 12)]
    second.close()
    assert losses(open_run(tmp_path / "first")) == expected[:8]
    assert losses(open_run(tmp_path / "second")) == expected[4:]
    assert list(l2(open_run(tmp_path / "second"), "gradient/first.weight")) == list(range(8))


class Samples(Dataset[Any]):
    """Rows that a model prepares, in a data worker: itself it is watched where it was made."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 16 * STEPS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        inputs = torch.randn(12, generator=torch.Generator().manual_seed(index))
        with torch.no_grad():
            self.model(inputs[None])
        if index % 97 == 0:  # even a training run of its own
            model = nn.Linear(12, 1)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            model(inputs[None]).sum().backward()
            optimizer.step()
        return inputs, inputs[:4].argmax(), os.getpid()


def test_forked_data_workers_record_nothing(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        model = Interruptible()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        seen = []
        # The first step is over when the workers are forked, and the recorder's thread runs.
        seen.append(train(model, optimizer, 0))
        loader = DataLoader(Samples(model), 16, num_workers=2, multiprocessing_context="fork")
        for inputs, labels, processes in loader:
            assert os.getpid() not in processes.tolist()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen, model

    run = trained_twice(tmp_path, training)
    assert list(run.workers) == ["worker_0"]
    assert run.steps() == list(range(STEPS + 1))
    assert run.steps(Mode.EVAL) == []
    assert not [
        path for path in (tmp_path / "full").rglob("*") if "worker_" in path.name and "worker_0" not in path.name
    ]


SCRIPT = """
    import multiprocessing, os, subprocess, sys
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, index):
            inputs = torch.randn(12, generator=torch.Generator().manual_seed(index))
            with torch.no_grad():
                nn.Linear(12, 3)(inputs[None])
            return inputs, inputs[:4].argmax()

    def step(model, optimizer, inputs, labels):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    def train(seed=0, steps=6):
        torch.manual_seed(seed)
        model = nn.Linear(12, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        inputs = torch.randn(16, 12)
        losses = [step(model, optimizer, inputs, inputs[:, :4].argmax(1)) for _ in range(steps)]
        print(losses[-1], flush=True)

    def main(kind):
        if kind in ("spawn", "fork", "forkserver"):
            torch.manual_seed(0)
            model = nn.Linear(12, 4)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(2):
                for batch in DataLoader(Samples(), 16, num_workers=2, multiprocessing_context=kind):
                    loss = step(model, optimizer, *batch)
            print(loss)
        elif kind == "children":
            subprocess.run([sys.executable, "-c", "import torch; torch.nn.Linear(2, 2)(torch.ones(1, 2))"], check=True)
            train()
        elif kind == "in a child":
            subprocess.run([sys.executable, __file__, "itself"], check=True)
        elif kind == "itself":
            train()
        elif kind == "mp.spawn":
            torch.multiprocessing.spawn(train, (6,), nprocs=1)
        elif kind == "forked":
            child = multiprocessing.get_context("fork").Process(target=train)
            child.start()
            child.join()
        elif kind == "one after another":
            for seed in range(2):
                torch.multiprocessing.spawn(train, nprocs=1)
        elif kind == "at once":
            torch.multiprocessing.spawn(train, nprocs=2)

    if __name__ == "__main__":
        main(sys.argv[1])
"""


def outcome(folder: Path, kind: str, *, watched: bool) -> str:
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    launcher = (
        ["-m", "watchglass", "run", "--evaluator=none", "--run-dir", "run", "--save-interval", "1"] if watched else []
    )
    done = subprocess.run(
        [sys.executable, *launcher, "train.py", kind],
        cwd=folder, env={**os.environ, "WATCHGLASS_STRICT": "1"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "capture is off" not in done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "steps"),
    [("spawn", 8), ("fork", 8), ("forkserver", 8), ("children", 6), ("in a child", 6), ("mp.spawn", 6), ("forked", 6)],
)
def test_the_process_that_trains_is_the_worker_and_no_other(tmp_path: Path, kind: str, steps: int) -> None:
    assert outcome(tmp_path, kind, watched=True) == outcome(tmp_path, kind, watched=False)
    run = open_run(tmp_path / "run")
    assert list(run.workers) == ["worker_0"]
    assert run.finished
    assert run.steps() == list(range(steps))
    assert run.steps(Mode.EVAL) == []
    assert list(l2(run, "gradient/weight")) == list(range(steps))
    assert not run.problems


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one after another", "at once"])
def test_two_processes_that_are_no_ranks_are_two_workers(tmp_path: Path, kind: str) -> None:
    plain, watched = (outcome(tmp_path, kind, watched=how).splitlines() for how in (False, True))
    assert sorted(plain) == sorted(watched)
    run = open_run(tmp_path / "run")
    assert run.attempts == [0]
    assert run.workers == ["worker_0", "worker_1"]
    assert run.finished
    for name in run.workers:
        assert [end.mode_step for end, _ in run.worker(name).course] == list(range(6))
        assert not run.problems
