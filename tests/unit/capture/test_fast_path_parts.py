"""The parts of the fast path: what a pattern is, calls that are held back, several forwards for one backward."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from watchglass.capture.pytorch.fast_path.calls_ahead import CallAhead, CallsAhead
from watchglass.capture.pytorch.fast_path.several_forwards import SeveralForwards
from watchglass.capture.pytorch.fast_path.step_pattern import StepPattern
from watchglass.capture.pytorch.fast_path.step_progress import (
    BETWEEN,
    IN_BACKWARD,
    IN_FORWARD,
    NO_MORE,
    ONE_EACH,
    SEVERAL_FOR_ONE,
    StepProgress,
)  # fmt: skip
from watchglass.capture.pytorch.losses.objective import Loss, Objective
from watchglass.record import Forward, OpenStep
from watchglass.records import Mode

HABIT = 3


def shielded(callback: Callable[..., Any], unless: Any = None) -> Callable[..., Any]:
    return callback


class FullPath:
    """What the full path is told of calls ahead of steps."""

    def __init__(self) -> None:
        self.given_back: list[CallAhead] = []
        self.betweens: list[bool] = []

    def between(self, evaluating: bool) -> bool:
        self.betweens.append(evaluating)
        return False

    def give_back(self, call: CallAhead) -> None:
        self.given_back.append(call)


class Ahead:
    """Calls ahead of steps, with teachers that have no model number of their own."""

    def __init__(self, teachers: int = 1) -> None:
        self.now, self.full = StepProgress(), FullPath()
        self.teachers = [nn.Linear(2, 2) for _ in range(teachers)]
        self.numbers = {teacher: -1 - at for at, teacher in enumerate(self.teachers)}
        self.calls = CallsAhead(self.now, self.numbers.__getitem__, shielded)
        self.calls.full = self.full

    def learn(self) -> None:
        for teacher, number in self.numbers.items():
            self.calls.called(teacher, number)
        self.calls.expected = self.calls.take(tuple(self.numbers.values())) or ()
        self.calls.observe()

    def call(self, teacher: nn.Module) -> bool:
        with torch.no_grad():
            expected = self.calls.expects(teacher)
            if expected:
                self.calls.hold_back(teacher, (torch.ones(1, 2),), {}, 7)
            teacher(torch.ones(1, 2))
        return expected


@pytest.fixture
def ahead() -> Iterator[Ahead]:
    it = Ahead(2)
    yield it
    it.calls.ignore()


def test_calls_ahead_are_a_pattern_if_they_helped_the_step_and_are_of_no_model(ahead: Ahead) -> None:
    first, second = ahead.teachers
    ahead.calls.called(first, -1)
    ahead.calls.called(second, -2)
    found = ahead.calls.take((-1, -2))
    assert found is not None
    assert [(root(), training) for root, training in found] == [(first, True), (second, True)]
    assert ahead.calls.take(()) == (), "each step begins anew"
    ahead.calls.called(first, -1)
    assert ahead.calls.take(()) is None, "it was an evaluation"
    ahead.calls.called(first, 1)
    assert ahead.calls.take((1,)) is None, "a model of its own may be evaluated"
    for _ in range(5):
        ahead.calls.called(first, -1)
    assert ahead.calls.take((-1,) * 5) is None, "too many"


def test_expected_calls_are_held_back_until_the_model_is_called(ahead: Ahead) -> None:
    first, second = ahead.teachers
    ahead.learn()
    ahead.calls.follows = SEVERAL_FOR_ONE
    assert ahead.calls.observed
    assert not ahead.call(second), "out of order"
    assert ahead.call(first)
    assert ahead.now.follows == NO_MORE
    assert ahead.call(second)
    assert ahead.now.follows == SEVERAL_FOR_ONE
    assert [call.root for call in ahead.calls.held] == [first, second]
    assert [call.outputs for call in ahead.calls.held] != [None, None]
    assert not ahead.call(first), "one too many"
    ahead.calls.helped()
    assert (ahead.calls.held, ahead.full.given_back) == ([], [])
    assert ahead.full.betweens == [True, False, True, False]


def test_calls_with_gradients_in_another_mode_or_inside_another_are_not_expected(ahead: Ahead) -> None:
    first, second = ahead.teachers
    ahead.learn()
    assert not ahead.calls.expects(first), "gradients are on"
    first.eval()
    assert not ahead.call(first)
    first.train()
    ahead.numbers[first] = 1
    assert not ahead.call(first), "it has been trained since"
    ahead.numbers[first] = -1
    with torch.no_grad():
        ahead.calls.hold_back(first, (), {}, 7)
        assert not ahead.calls.expects(second), "the first has not returned"


def test_calls_that_are_held_back_are_given_back_in_their_order(ahead: Ahead) -> None:
    ahead.learn()
    for teacher in ahead.teachers:
        ahead.call(teacher)
    ahead.calls.ignore()
    ahead.calls.give_back()
    assert [call.root for call in ahead.full.given_back] == ahead.teachers
    assert [call.start_ns for call in ahead.full.given_back] == [7, 7]
    assert (ahead.calls.held, ahead.calls.observed) == ([], False)
    assert not any(teacher._forward_hooks for teacher in ahead.teachers)


class Several:
    """Forwards of a model of which several have one backward."""

    def __init__(self) -> None:
        self.now, self.current = StepProgress(), SimpleNamespace(in_backward=False)
        state: Any = self.current
        self.forwards = SeveralForwards(self.now, state, shielded)
        self.model = nn.Linear(2, 2)
        self.forwards.observe(self.model)
        self.now.at = BETWEEN

    def call(self) -> Tensor:
        self.now.at = IN_FORWARD
        self.forwards.begin(Forward(0, True))
        output: Tensor = self.model(torch.ones(1, 2))
        return output

    def backward(self, loss: Tensor) -> None:
        self.now.at, self.now.running = IN_BACKWARD, True
        loss.sum().backward()
        self.now.running = False


@pytest.fixture
def several() -> Iterator[Several]:
    it = Several()
    yield it
    it.forwards.ignore()


def test_a_backward_is_seen_to_run_through_some_forwards(several: Several) -> None:
    outputs = [several.call() for _ in range(3)]
    assert [forward.marked for forward in several.forwards.all] == [True] * 3
    several.backward(outputs[0] + outputs[2])
    assert [forward.backpropagated for forward in several.forwards.all] == [True, False, True]
    assert several.forwards.some_left
    several.forwards.clear()
    several.backward(several.call() + several.call())
    assert len(several.forwards.all) == 2
    assert not several.forwards.some_left
    several.forwards.ignore()
    assert not several.model._forward_hooks


def test_a_gradient_that_trains_nothing_is_no_backward(several: Several) -> None:
    output = several.call()
    torch.autograd.grad(output.sum(), list(several.model.parameters()))
    assert several.forwards.some_left


def test_whether_gradients_with_a_graph_are_trained_on_is_for_the_graph_to_show(several: Several) -> None:
    one, other = several.call(), several.call()
    torch.autograd.grad(one.sum(), several.model.weight, create_graph=True)
    torch.autograd.grad(one.sum(), several.model.weight, create_graph=True)
    assert several.forwards.differentiated == several.forwards.all[:1]
    several.backward(other)
    several.forwards.clear()
    assert not several.forwards.differentiated


def test_a_forward_that_an_exception_left_has_no_mark_of_its_own(several: Several) -> None:
    several.now.at = IN_FORWARD
    forward = Forward(0, True)
    several.forwards.begin(forward)
    with pytest.raises(RuntimeError):
        several.model(torch.ones(1, 3))
    assert several.forwards.called is forward
    several.call()
    assert several.forwards.called is None


def test_a_forward_that_runs_a_backward_itself_is_not_marked_anew(several: Several) -> None:
    several.forwards.begin(Forward(0, True))
    several.now.at = IN_BACKWARD
    output = several.model(torch.ones(1, 2))
    assert not output._backward_hooks


def test_other_threads_are_not_followed(several: Several) -> None:
    several.now.at = IN_FORWARD
    several.forwards.begin(Forward(0, True))
    thread = threading.Thread(target=lambda: several.model(torch.ones(1, 2)))
    thread.start()
    thread.join()
    assert several.forwards.called is not None


def test_after_many_forwards_no_more_are_followed(several: Several) -> None:
    several.now.follows = SEVERAL_FOR_ONE
    for number in range(512):
        assert several.now.follows == SEVERAL_FOR_ONE, number
        several.forwards.begin(Forward(0, True))
    assert several.now.follows == NO_MORE


class Steps:
    """Whole steps that the full path has seen, each as regular as can be."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.current = SimpleNamespace(
            port=SimpleNamespace(limits=SimpleNamespace(alike_steps=HABIT)),
            recomputed=False,
            quiet_steps=HABIT,
            models=SimpleNamespace(only_root=lambda step: self.model),
            objectives=SimpleNamespace(backwards=1, parameter_of=lambda optimizer: self.model.weight),
        )
        state: Any = self.current
        self.ahead = Ahead()
        self.pattern = StepPattern(state, self.ahead.calls)
        self.number = 0

    def learn(
        self, *, forwards: int = 1, backwards: int = 1, value: Any = 0.5, plain: bool = True, teacher: bool = False,
        **changes: Any,
    ) -> bool:  # fmt: skip
        step = OpenStep(self.number, Mode.TRAIN, self.number, self.number, 0)
        self.number += 1
        step.forwards = [Forward(0, True) for _ in range(forwards)]
        for forward in step.forwards:
            forward.backpropagated = True
        step.optimizers.add(id(self.optimizer))
        if teacher:
            self.ahead.calls.called(self.ahead.teachers[0], -1)
            step.helpers = (-1,)
        for name, change in changes.items():
            setattr(step, name, change)
        self.current.objectives.backwards = backwards
        objective = Objective([[Loss(number, value) for number in range(backwards)]])
        return self.pattern.learn(step, self.optimizer, objective, plain=plain)


def test_a_pattern_is_learned_from_steps_in_a_row() -> None:
    steps = Steps()
    assert [steps.learn() for _ in range(HABIT + 1)] == [False] * (HABIT - 1) + [True, True]
    pattern = steps.pattern
    assert (pattern.root(), pattern.optimizer(), pattern.parameter()) == (
        steps.model, steps.optimizer, steps.model.weight,
    )  # fmt: skip
    assert (pattern.several, pattern.most, pattern.begins) == (False, 1, ONE_EACH)
    assert pattern.continues(steps.model)
    with torch.no_grad():
        assert not pattern.continues(steps.model)
    steps.model.eval()
    assert not pattern.continues(steps.model)
    pattern.forget()
    assert not steps.learn()


@pytest.mark.parametrize(
    "other",
    [
        {"plain": False}, {"value": math.nan}, {"forwards": 2, "backwards": 3}, {"optimizers": {1, 2}},
        {"helpers": (-1,)},
    ],
    ids=str,
)  # fmt: skip
def test_one_other_step_among_them_begins_the_count_anew(other: dict[str, Any]) -> None:
    steps = Steps()
    for _ in range(HABIT - 1):
        assert not steps.learn()
    assert not steps.learn(**other)
    assert [steps.learn() for _ in range(HABIT)] == [False] * (HABIT - 1) + [True]


def test_the_most_forwards_and_backwards_count() -> None:
    steps = Steps()
    for backwards in (1, 3, 2):
        steps.learn(forwards=backwards, backwards=backwards)
    assert (steps.pattern.most, steps.pattern.begins) == (3, ONE_EACH)
    steps.learn(forwards=4)
    assert steps.pattern.several
    assert steps.pattern.begins == SEVERAL_FOR_ONE


def test_a_model_waits_for_the_calls_ahead_of_it() -> None:
    steps = Steps()
    assert [steps.learn(teacher=True) for _ in range(HABIT)] == [False] * (HABIT - 1) + [True]
    assert steps.pattern.begins == (False, False, False, True)
    assert steps.ahead.calls.follows == ONE_EACH
    assert [root() for root, _ in steps.ahead.calls.expected] == steps.ahead.teachers
    assert not steps.learn(teacher=True, due=True), "the step after a captured one is looked at in full"
