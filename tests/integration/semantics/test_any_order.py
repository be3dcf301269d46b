"""Whatever a loop does, in whatever order: the same bits, and the same steps and losses whether captured or not."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, example, given, settings, strategies as st
from torch import nn

from train_twice import Watch, batch, trained_twice
from watchglass import Mode


class Loop:
    """A model, two optimizers, and what a script may do with them between two lines of its own."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 4))
        self.first = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        self.second = torch.optim.Adam(self.model[3].parameters(), 0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        self.saved = copy.deepcopy(self.model.state_dict())
        self.seen: list[float] = []

    def loss(self, number: int, rows: int = 8) -> torch.Tensor:
        inputs, labels = batch(number, rows)
        loss = F.cross_entropy(self.model(inputs), labels)
        self.seen.append(loss.item())
        return loss

    def step(self, number: int) -> None:
        self.first.zero_grad()
        self.loss(number).backward()
        self.first.step()

    def accumulate(self, number: int) -> None:
        self.first.zero_grad()
        for part in range(3):
            self.loss(number + part, 4 + part).backward()
        self.first.step()

    def two_optimizers(self, number: int) -> None:
        self.model.zero_grad()
        self.loss(number).backward()
        self.first.step()
        self.second.step()

    def other_optimizer(self, number: int) -> None:
        self.second.zero_grad()
        self.loss(number).backward()
        self.second.step()

    def evaluate(self, number: int) -> None:
        self.model.eval()
        with torch.no_grad():
            self.loss(number)
            self.loss(number + 1, 3)
        self.model.train()

    def evaluate_carelessly(self, number: int) -> None:
        self.loss(number)

    def evaluate_inside(self, number: int) -> None:
        self.first.zero_grad()
        self.loss(number).backward()
        self.evaluate(number)
        self.first.step()

    def closure(self, number: int) -> None:
        def again() -> float:
            self.first.zero_grad()
            loss = self.loss(number)
            loss.backward()
            return loss.item()

        self.first.step(again)

    def scaled(self, number: int) -> None:
        self.first.zero_grad()
        self.scaler.scale(self.loss(number)).backward()
        self.scaler.step(self.first)
        self.scaler.update()

    def skipped(self, number: int) -> None:
        self.first.zero_grad()
        self.scaler.scale(self.loss(number) * 1e38).backward()
        self.scaler.step(self.first)
        self.scaler.update()

    def two_losses(self, number: int) -> None:
        self.first.zero_grad()
        loss = self.loss(number)
        (0.1 * loss).backward(retain_graph=True)
        loss.backward()
        self.first.step()

    def penalised(self, number: int) -> None:
        self.first.zero_grad()
        (self.loss(number) + 0.01 * self.model[0].weight.square().sum()).backward()
        self.first.step()

    def by_hand(self, number: int) -> None:
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        for parameter, gradient in zip(parameters, torch.autograd.grad(self.loss(number), parameters), strict=True):
            parameter.grad = gradient
        self.first.step()

    def forward_that_fails(self, number: int) -> None:
        with pytest.raises(RuntimeError):
            self.model(torch.ones(2, 5))

    def backward_without_step(self, number: int) -> None:
        self.loss(number).backward()

    def step_without_backward(self, number: int) -> None:
        self.first.step()

    def load(self, number: int) -> None:
        self.model.load_state_dict(self.saved)

    def freeze(self, number: int) -> None:
        self.model[0].requires_grad_(not self.model[0].weight.requires_grad)

    def schedule(self, number: int) -> None:
        self.first.param_groups[0]["lr"] *= 0.9

    def clip(self, number: int) -> None:
        self.first.zero_grad()
        self.loss(number).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.first.step()

    def part_alone(self, number: int) -> None:
        with torch.no_grad():
            self.model[0](batch(number)[0])

    def copy_trained(self, number: int) -> None:
        other = copy.deepcopy(self.model)
        optimizer = torch.optim.SGD(other.parameters(), 0.1)
        inputs, labels = batch(number)
        F.cross_entropy(other(inputs), labels).backward()
        optimizer.step()


ODD = sorted(name for name in vars(Loop) if not name.startswith("_") and name not in ("loss", "step"))

#: Calls of modules outside the watched model; they count as models where models are found by their calls.
ELSEWHERE = {"copy_trained", "part_alone"}

#: So many plain steps, then something odd.
Course = list[tuple[int, str]]


def training_of(course: Course) -> Callable[[Watch], Any]:
    def training(watch: Watch) -> Any:
        loop = Loop()
        watch(loop.model)
        number = 0
        for plain, odd in course:
            for _ in range(plain):
                loop.step(number)
                number += 1
            getattr(loop, odd)(number)
            number += 5
        loop.step(number)
        return loop.seen, loop.model, loop.first, loop.second

    return training


# A second optimizer in the step of the first must have been seen early: where it comes as a surprise amid steps of
# which nothing is captured, that step has been written when it does, and it gets one of its own.
oddities = st.sampled_from([name for name in ODD if name != "two_optimizers"])
courses = st.lists(st.tuples(st.sampled_from([0, 1, 2, 18]), oddities), min_size=1, max_size=8)


#: ``make fuzz`` draws more.
_MANY = int(os.environ.get("WATCHGLASS_TEST_EXAMPLES", "10"))


@pytest.mark.slow
@settings(max_examples=_MANY, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(courses)
@example([(18, "evaluate_carelessly"), (0, "penalised")])
def test_any_loop_is_recorded_alike_and_left_alone(tmp_path: Path, course: Course) -> None:
    """Watched in three ways, it must be to the last bit what it is bare: ``trained_twice`` compares."""
    shutil.rmtree(tmp_path / "any", ignore_errors=True)
    run = trained_twice(tmp_path / "any", training_of(course), discovered=not ELSEWHERE & {odd for _, odd in course})
    assert run.steps(), "nothing was compared"


@pytest.mark.parametrize("odd", ODD)
def test_each_oddity_amid_plain_steps(tmp_path: Path, odd: str) -> None:
    """Alone, at the start, on the fast path, twice in a row, and before an evaluation; compared as above."""
    course = [(2, odd), (18, odd), (0, odd), (18, odd), (1, "evaluate")]
    run = trained_twice(tmp_path, training_of(course), discovered=odd not in ELSEWHERE)
    assert len(run.steps(Mode.TRAIN)) >= 18, "the fast path was not reached"
