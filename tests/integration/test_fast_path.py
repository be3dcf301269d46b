"""The fast path records what the full path records, whatever a training run does in between."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import watchglass
from limited import watching_within
from watchglass import Mode, open_run
from watchglass.capture.limits import DEFAULT_LIMITS, CaptureLimits
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.cli.run_contents import sections_of
from watchglass.diagnose.unjudged import why_unjudged
from watchglass.evaluate import replay
from watchglass.records import RuleStatus, Status, facts
from watchglass.run import count_steps
from watchglass.run.summaries import models_of
from watchglass.view import TextTable

STEPS = 60


class ByHand:
    """What a script writes in place of an optimizer; no hook point of PyTorch reports its updates.

    Args:
        model: The model.
        update: Changes one parameter of a module, by its name.
    """

    def __init__(self, model: nn.Module, update: Callable[[nn.Module, str, Tensor], None]) -> None:
        self.model = model
        self.update = update

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.model.zero_grad(set_to_none)

    def step(self) -> None:
        for module in self.model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                self.update(module, name, parameter)


@torch.no_grad()
def in_place(module: nn.Module, name: str, parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter -= 0.05 * parameter.grad


def by_data(module: nn.Module, name: str, parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.data.add_(parameter.grad, alpha=-0.05)


def by_other_data(module: nn.Module, name: str, parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.data = parameter.data - 0.05 * parameter.grad


def by_replacing(module: nn.Module, name: str, parameter: Tensor) -> None:
    assert parameter.grad is not None
    setattr(module, name, nn.Parameter(parameter.detach() - 0.05 * parameter.grad))


def partly_by_replacing(module: nn.Module, name: str, parameter: Tensor) -> None:
    (by_replacing if name == "bias" else in_place)(module, name, parameter)


UPDATES = [in_place, by_data, by_other_data, by_replacing]


class Loop:
    """A manual training run, one call per thing that may happen in it."""

    def __init__(self, update: Callable[[nn.Module, str, Tensor], None] | None = None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=0.05)
        if update is not None:
            self.optimizer = ByHand(self.model, update)
        self.inputs = torch.randn(16, 6)
        self.labels = self.inputs[:, :3].argmax(1)

    def loss(self, rows: int = 16) -> Tensor:
        return F.cross_entropy(self.model(self.inputs[:rows]), self.labels[:rows])

    def backward(self, rows: int = 16) -> None:
        self.loss(rows).backward()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()

    def evaluate(self) -> None:
        with torch.no_grad():
            self.loss(8)

    def stumble(self) -> None:
        with pytest.raises(RuntimeError):
            self.model(self.inputs[:, :5])


def plain(loop: Loop, number: int) -> None:
    loop.step()


def evaluating(loop: Loop, number: int) -> None:
    loop.step()
    if number % 7 == 6:
        loop.evaluate()
        loop.evaluate()


def evaluating_at_the_end(loop: Loop, number: int) -> None:
    loop.step()
    if number == STEPS - 1:
        loop.evaluate()


def evaluating_inside(loop: Loop, number: int) -> None:
    loop.optimizer.zero_grad()
    loop.backward()
    if number % 12 == 11:
        loop.evaluate()
    loop.optimizer.step()


def evaluating_with_gradients(loop: Loop, number: int) -> None:
    loop.step()
    if number % 19 == 18:
        loop.loss(4)


def accumulating(loop: Loop, number: int) -> None:
    loop.optimizer.zero_grad()
    loop.backward(12)
    if number % 11 != 10:
        loop.backward(4)
    loop.optimizer.step()


def accumulating_and_clearing_at_times(loop: Loop, number: int) -> None:
    loop.optimizer.zero_grad()
    loop.backward(12)
    if number % 12 == 11:
        loop.optimizer.zero_grad()
    loop.backward(4)
    loop.optimizer.step()


def going_back_at_times(loop: Loop, number: int) -> None:
    loop.optimizer.zero_grad()
    loop.backward()
    if number % 12 == 11:
        loop.optimizer.zero_grad(set_to_none=number < 30)
        loop.backward(8)
    loop.optimizer.step()


def scheduling(loop: Loop, number: int) -> None:
    loop.step()
    loop.optimizer.param_groups[0]["lr"] *= 0.99


def stumbling(loop: Loop, number: int) -> None:
    if number % 13 == 12:
        loop.stumble()
    loop.step()


def with_a_closure_at_times(loop: Loop, number: int) -> None:
    if number % 10 != 9:
        loop.step()
        return

    def closure() -> float:
        loop.optimizer.zero_grad()
        loss = loop.loss()
        loss.backward()
        return loss.item()

    loop.optimizer.step(closure)


def with_two_losses_at_times(loop: Loop, number: int) -> None:
    loop.optimizer.zero_grad()
    loss = loop.loss()
    loss.backward(retain_graph=number == 33)
    if number == 33:
        (0.1 * loss).backward()
    loop.optimizer.step()


def blowing_up(loop: Loop, number: int) -> None:
    if number == 45:
        loop.inputs[3, 3] = math.nan
    loop.step()


def many(loop: Loop, number: int, *, left: bool = False) -> None:
    """As in reinforcement learning: several calls of the model, and one backward through all of them."""
    losses = [loop.loss(rows) for rows in range(2, 5 + number % 3)]
    if left:
        del losses[1]
    loop.optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    loop.optimizer.step()


def many_with_one_left(loop: Loop, number: int) -> None:
    many(loop, number, left=number % 11 == 10)


def many_with_the_last_left(loop: Loop, number: int) -> None:
    many(loop, number)
    if number % 11 == 10:
        loop.loss(4)


def many_and_evaluating(loop: Loop, number: int) -> None:
    losses = [loop.loss(2), loop.loss(3)]
    if number == 28:
        loop.evaluate()
    losses.append(loop.loss(4))
    loop.optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    if number == 45:
        loop.evaluate()
    loop.optimizer.step()
    if number % 20 == 19:
        loop.evaluate()


def many_and_stumbling(loop: Loop, number: int) -> None:
    losses = [loop.loss(2), loop.loss(3)]
    if number % 11 == 10:
        loop.stumble()
    losses.append(loop.loss(4))
    loop.optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    loop.optimizer.step()


def many_and_accumulating_at_times(loop: Loop, number: int) -> None:
    losses = [loop.loss(2), loop.loss(3)]
    loop.optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    if number % 11 == 10:
        (loop.loss(4) + loop.loss(5)).backward()
    loop.optimizer.step()


def many_with_other_gradients(loop: Loop, number: int) -> None:
    """A penalty on gradients goes through outputs, and so does a gradient that trains nothing."""
    losses = [loop.loss(2), loop.loss(3)]
    if number % 11 == 10:
        torch.autograd.grad(loop.loss(4), list(loop.model.parameters()))
    loop.optimizer.zero_grad()
    torch.stack(losses).sum().backward(retain_graph=number % 13 == 12)
    if number % 13 == 12:
        losses[0].backward()
    loop.optimizer.step()


def many_and_blowing_up(loop: Loop, number: int) -> None:
    if number == 45:
        loop.inputs[3, 3] = math.nan
    many(loop, number)


def many_with_a_checkpoint(loop: Loop, number: int) -> None:
    losses = [loop.loss(2), loop.loss(3)]
    if number == 40:
        output = checkpoint(loop.model, loop.inputs[:4], use_reentrant=False)
        losses.append(F.cross_entropy(output, loop.labels[:4]))
    loop.optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    loop.optimizer.step()


def one_among_many(loop: Loop, number: int) -> None:
    (plain if number % 3 == 2 else many)(loop, number)


def very_many(loop: Loop, number: int) -> None:
    losses = [loop.loss(2) for _ in range(1100 if number in (40, 41) else 2)]
    loop.optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    loop.optimizer.step()


def several_for_one_at_times(loop: Loop, number: int) -> None:
    loop.optimizer.zero_grad()
    loss = loop.loss(12)
    if number in (30, 45):
        loss = loss + loop.loss(4)
    if number == 45:
        loss = loss + loop.loss(3)
    loss.backward()
    loop.optimizer.step()


def evaluating_ahead_of_several(loop: Loop, number: int) -> None:
    loop.optimizer.zero_grad()
    if number in (30, 45):
        loop.loss(4)
    loss = loop.loss(12)
    if number == 45:
        loss = loss + loop.loss(3)
    loss.backward()
    loop.optimizer.step()


def evaluating_beside_a_penalty(loop: Loop, number: int) -> None:
    loop.optimizer.zero_grad()
    if number in (30, 45):
        loop.loss(4)
    penalty = sum(parameter.square().sum() for parameter in loop.model.parameters())
    (loop.loss(12) + 1e-4 * penalty).backward()
    loop.optimizer.step()


def accumulating_and_adding_at_times(loop: Loop, number: int) -> None:
    loop.optimizer.zero_grad()
    loop.backward(12)
    loss = loop.loss(4)
    if number in (30, 45):
        loss = loss + loop.loss(3)
    loss.backward()
    loop.optimizer.step()


def evaluating_ahead_of_the_backward(loop: Loop, number: int) -> None:
    loop.optimizer.zero_grad()
    loss = loop.loss(12)
    if number in (30, 45):
        loop.evaluate()
    if number == 45:
        loss = loss + loop.loss(3)
    loss.backward()
    loop.optimizer.step()


#: With the number of evaluations of each.
EVALUATIONS = {
    several_for_one_at_times: 0, evaluating_ahead_of_several: 2, evaluating_beside_a_penalty: 2,
    accumulating_and_adding_at_times: 0, evaluating_ahead_of_the_backward: 2,
}  # fmt: skip
SEVERAL = [*EVALUATIONS]
MANY = [
    many, many_with_one_left, many_with_the_last_left, many_and_evaluating, many_and_stumbling,
    many_and_accumulating_at_times, many_with_other_gradients, many_and_blowing_up, many_with_a_checkpoint,
    one_among_many, very_many,
]  # fmt: skip


def saving(loop: Loop, number: int) -> None:
    loop.optimizer.zero_grad()
    loop.backward()
    if number % 3:
        watchglass.save_scalar("reward", number)
    loop.optimizer.step()


def saving_after_the_update(loop: Loop, number: int) -> None:
    if number % 3:
        watchglass.save_scalar("reward", -number)
    loop.step()
    watchglass.save_scalar("reward", number)


def evaluating_and_saving(loop: Loop, number: int) -> None:
    evaluating(loop, number)
    watchglass.save_scalar("reward", number)


Happening = Callable[[Loop, int], None]


#: No pattern is ever long enough: every step takes the full path.
NO_FAST_PATH = CaptureLimits(alike_steps=1 << 40)


def recorded(
    path: Path,
    happening: Happening,
    steps: int = STEPS,
    limits: CaptureLimits = DEFAULT_LIMITS,
    update: Callable[[nn.Module, str, Tensor], None] | None = None,
) -> tuple[dict[str, Any], int]:
    """What a run holds but for times, and how many steps took the fast path."""
    loop, taken = Loop(update), 0
    with watching_within(limits, loop.model, path, save_interval=1000) as hook:
        adapter = PyTorchAdapter.of(hook.port)
        assert adapter is not None
        for number in range(steps):
            happening(loop, number)
            taken += adapter.fast_path.on
    run = open_run(path)
    content: dict[str, Any] = {"parameters": repr([parameter.tolist() for parameter in loop.model.parameters()])}
    for mode in (Mode.TRAIN, Mode.EVAL):
        content[f"{mode.name} steps"] = run.steps(mode)
        content[f"{mode.name} global"] = [run.global_step(step, mode) for step in run.steps(mode)]
        for name in ("loss", "learning_rate", "reward"):
            if name in run.tensor_names():
                at, values = run.scalars(name, mode=mode)
                content[f"{mode.name} {name}"] = (list(at), [repr(float(value)) for value in values])
    content["facts"] = [
        (fact.kind, fact.global_step, fact.data.get("where"), fact.data.get("sentence"))
        for fact in run.facts()
        if fact.kind in ("first_bad_module", "nonfinite_loss", "step_skipped", "capture_fault")
    ]
    return content, taken


@pytest.mark.parametrize(
    "happening",
    [
        plain, evaluating, evaluating_inside, evaluating_with_gradients, accumulating,
        accumulating_and_clearing_at_times,
        going_back_at_times, scheduling, stumbling,
        with_a_closure_at_times, with_two_losses_at_times, blowing_up, saving,
        saving_after_the_update, evaluating_and_saving, *MANY, *SEVERAL,
    ],
    ids=lambda happening: happening.__name__,
)  # fmt: skip
def test_both_paths_record_the_same(tmp_path: Path, happening: Happening) -> None:
    content, taken = recorded(tmp_path / "fast", happening)
    assert taken >= 8
    expected, none = recorded(tmp_path / "full", happening, limits=NO_FAST_PATH)
    assert none == 0
    assert content == expected


#: Steps so short that one of four is recorded.
SHORT_STEPS = replace(DEFAULT_LIMITS, whole_steps=1, row_ns=10**15, step_interval=4)


def micro_batches(loop: Loop, number: int, inside: Callable[[], None] = lambda: None, count: int = 4) -> None:
    loop.optimizer.zero_grad()
    for at in range(count):
        loop.backward(4 + at)
        if at == 1:
            inside()
    loop.optimizer.step()


def micro_batches_and_evaluating(loop: Loop, number: int) -> None:
    """Inside a step and between two."""
    micro_batches(loop, number, loop.evaluate if number % 17 == 16 else lambda: None)
    if number % 21 == 20:
        loop.evaluate()


def fewer_micro_batches_at_times(loop: Loop, number: int) -> None:
    micro_batches(loop, number, count=2 if number % 15 == 14 else 4)


def several_for_one(loop: Loop, number: int, inside: Callable[[], None] = lambda: None) -> None:
    loop.optimizer.zero_grad()
    losses = [loop.loss(4 + at) for at in range(3)]
    inside()
    torch.stack(losses).sum().backward()
    loop.optimizer.step()


def several_and_evaluating(loop: Loop, number: int) -> None:
    several_for_one(loop, number, loop.evaluate if number % 17 == 16 else lambda: None)


#: Calls in training mode, with gradients, that no backward follows: of these the fast path sees nothing while it rests.
UNSEEN = [evaluating_with_gradients, stumbling, evaluating_ahead_of_several, evaluating_beside_a_penalty]


@pytest.mark.parametrize("update", [None, in_place], ids=["optimizer", "script"])
@pytest.mark.parametrize(
    "happening",
    [
        plain, evaluating, evaluating_inside, accumulating, going_back_at_times, scheduling, with_a_closure_at_times,
        with_two_losses_at_times, blowing_up, saving, saving_after_the_update, evaluating_and_saving,
        evaluating_ahead_of_the_backward, evaluating_at_the_end, accumulating_and_adding_at_times, micro_batches,
        micro_batches_and_evaluating, fewer_micro_batches_at_times, several_for_one, several_and_evaluating, *UNSEEN,
    ],
    ids=lambda happening: happening.__name__,
)  # fmt: skip
def test_of_short_steps_some_are_recorded_and_evaluations_numbers_and_values_stay_right(
    tmp_path: Path, happening: Happening, update: Any
) -> None:
    if update is not None and happening in (scheduling, with_a_closure_at_times):
        pytest.skip("an optimizer has these")
    content, _ = recorded(tmp_path / "fast", happening, limits=SHORT_STEPS, update=update)
    expected, _ = recorded(tmp_path / "full", happening, limits=NO_FAST_PATH, update=update)
    assert content["parameters"] == expected["parameters"]
    for name in ("EVAL steps", "EVAL global", "EVAL loss"):
        assert happening in UNSEEN or content.get(name) == expected.get(name), name
    assert len(content["EVAL steps"]) <= len(expected["EVAL steps"])
    assert set(content["TRAIN steps"]) <= set(expected["TRAIN steps"])
    assert content["TRAIN steps"][-1] == expected["TRAIN steps"][-1]
    whole = dict(zip(expected["TRAIN steps"], expected["TRAIN global"], strict=True))
    if happening not in UNSEEN:
        assert [whole[step] for step in content["TRAIN steps"]] == content["TRAIN global"]
    for name in ("TRAIN loss", "TRAIN learning_rate") if update is None else ("TRAIN loss",):
        whole = dict(zip(*expected[name], strict=True))
        assert {step: whole[step] for step in content[name][0]} == dict(zip(*content[name], strict=True))


def test_the_number_of_short_steps_is_known_although_not_all_are_recorded(tmp_path: Path) -> None:
    content, _ = recorded(tmp_path / "run", plain, limits=SHORT_STEPS)
    assert len(content["TRAIN steps"]) < STEPS
    run = open_run(tmp_path / "run")
    assert count_steps(run, Mode.TRAIN) == models_of(run)[0].train_steps == STEPS
    assert replay(tmp_path / "run").train_steps == STEPS
    assert {fact.data["interval"] for fact in run.facts("step_interval")} == {4}
    sections = {section.title: section.blocks for section in sections_of(run, run.location, every=False)}
    (steps,) = sections["Steps"]
    assert isinstance(steps, TextTable)
    assert [row[1:3] for row in steps.rows] == [("TRAIN", "60 steps")]
    assert steps.rows[0][3] == f"0 to 59, {len(content['TRAIN steps'])} of them recorded"


@pytest.mark.parametrize("update", [None, in_place], ids=["optimizer", "script"])
@pytest.mark.parametrize("happening", [plain, micro_batches, several_for_one], ids=lambda it: it.__name__)
def test_short_steps_of_each_kind_are_only_counted(tmp_path: Path, happening: Happening, update: Any) -> None:
    if happening is not plain and update is not None:
        pytest.skip("these are recorded")
    content, _ = recorded(tmp_path / "run", happening, limits=SHORT_STEPS, update=update)
    assert len(content["TRAIN steps"]) < STEPS // 2
    assert count_steps(open_run(tmp_path / "run"), Mode.TRAIN) == STEPS


def test_updates_without_hooks_are_compared_with_all_short_steps(tmp_path: Path) -> None:
    recorded(tmp_path / "run", plain, limits=SHORT_STEPS)
    bypassed = facts.BypassedUpdates(since=8, reason="it was replaced", steps=20, worker="worker_0")
    evaluated = [RuleStatus("Overfit", Status.NO_ISSUES_FOUND)]
    assert "20 of 60 updates" in why_unjudged(open_run(tmp_path / "run"), evaluated, [bypassed])


#: With the other ways to update a step is followed by the same marks: a few of what may happen in it are enough.
BY_THE_SCRIPT = [
    *(
        (happening, in_place)
        for happening in [
            plain, evaluating, evaluating_inside, evaluating_with_gradients, accumulating,
            accumulating_and_clearing_at_times, going_back_at_times, stumbling, with_two_losses_at_times, blowing_up,
            saving, saving_after_the_update, evaluating_and_saving, *SEVERAL,
        ]
    ),
    *(
        (happening, update)
        for happening in [plain, evaluating_inside, accumulating, going_back_at_times]
        for update in UPDATES[1:]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("happening", "update"), BY_THE_SCRIPT, ids=lambda value: value.__name__)
def test_both_paths_record_the_same_of_updates_by_the_script(
    tmp_path: Path, happening: Happening, update: Callable[[nn.Module, str, Tensor], None]
) -> None:
    content, taken = recorded(tmp_path / "fast", happening, update=update)
    # Micro-batches whose parameters are replaced have nothing in common by which they can be followed.
    assert taken >= 8 or (update is by_replacing and happening.__name__.startswith("accumulating"))
    expected, none = recorded(tmp_path / "full", happening, limits=NO_FAST_PATH, update=update)
    assert none == 0
    assert content == expected
    assert "learning_rate" not in open_run(tmp_path / "fast").tensor_names()


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, NO_FAST_PATH], ids=["fast", "full"])
@pytest.mark.parametrize("happening", SEVERAL, ids=lambda happening: happening.__name__)
def test_a_forward_is_an_evaluation_only_if_no_backward_runs_through_it(
    tmp_path: Path, happening: Happening, limits: CaptureLimits
) -> None:
    content, _ = recorded(tmp_path / "run", happening, limits=limits)
    assert len(content["EVAL steps"]) == EVALUATIONS[happening]
    assert content["TRAIN steps"] == list(range(STEPS))


def test_an_update_that_no_version_shows_is_found_where_all_before_it_did_show(tmp_path: Path) -> None:
    """No values are kept then, so the first of them counts to the step after it, on either path."""

    def changing(loop: Loop, number: int) -> None:
        loop.optimizer.update = by_data if number in (40, 41) else in_place
        loop.step()

    content, taken = recorded(tmp_path / "fast", changing, update=in_place)
    assert taken >= 8
    assert content == recorded(tmp_path / "full", changing, limits=NO_FAST_PATH, update=in_place)[0]
    assert len(content["TRAIN steps"]) == STEPS - 1


def test_updates_of_other_rows_of_an_embedding_at_each_step_are_found(tmp_path: Path) -> None:
    """Their versions do not show, and the values that are compared must be some that change."""

    def embedding(loop: Loop, number: int) -> None:
        if number == 0:
            loop.optimizer.model = loop.model[0] = nn.Embedding(400, 8)
            loop.model[2].requires_grad_(False)
        loop.optimizer.zero_grad()
        F.cross_entropy(loop.model(torch.arange(8 * number, 8 * number + 16) % 400), loop.labels).backward()
        loop.optimizer.step()

    content, taken = recorded(tmp_path / "fast", embedding, update=by_data)
    assert taken >= 8
    assert content == recorded(tmp_path / "full", embedding, limits=NO_FAST_PATH, update=by_data)[0]
    assert len(content["TRAIN steps"]) == STEPS


@pytest.mark.parametrize("update", [None, in_place], ids=["optimizer", "script"])
def test_a_model_that_a_backward_calls_once_more_is_not_evaluated(tmp_path: Path, update: Any) -> None:
    def checkpointing(loop: Loop, number: int) -> None:
        loop.optimizer.zero_grad()
        loop.backward(12)
        if number >= 30:
            output = checkpoint(loop.model, loop.inputs[:4], use_reentrant=False)
            F.cross_entropy(output, loop.labels[:4]).backward()
        else:
            loop.backward(4)
        loop.optimizer.step()

    content, taken = recorded(tmp_path / "fast", checkpointing, update=update)
    assert taken >= 8
    assert content == recorded(tmp_path / "full", checkpointing, limits=NO_FAST_PATH, update=update)[0]
    assert not content["EVAL steps"]


def test_an_optimizer_that_steps_inside_each_backward_is_followed(tmp_path: Path) -> None:
    def stepping(loop: Loop, number: int) -> None:
        if number == 0:
            loop.model[0].weight.register_post_accumulate_grad_hook(lambda parameter: loop.optimizer.step())
        loop.optimizer.zero_grad()
        loop.backward()

    content, taken = recorded(tmp_path / "fast", stepping)
    assert taken >= 30
    assert content == recorded(tmp_path / "full", stepping, limits=NO_FAST_PATH)[0]


def test_an_optimizer_that_takes_over_from_the_script_ends_the_fast_path(tmp_path: Path) -> None:
    def taking_over(loop: Loop, number: int) -> None:
        if number == 40:
            loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.05)
        loop.step()

    content, taken = recorded(tmp_path / "fast", taking_over, update=in_place)
    assert taken >= 8
    assert content == recorded(tmp_path / "full", taking_over, limits=NO_FAST_PATH, update=in_place)[0]
    assert len(content["TRAIN learning_rate"][0]) == STEPS - 40


def test_a_second_optimizer_ends_the_fast_path_for_good(tmp_path: Path) -> None:
    loop = Loop()
    second = torch.optim.Adam(loop.model.parameters())
    with watchglass.watch(loop.model, run=tmp_path / "run", save_interval=1000, strict=True) as hook:
        adapter = PyTorchAdapter.of(hook.port)
        assert adapter is not None
        on = []
        for number in range(STEPS):
            loop.step()
            on.append(adapter.fast_path.on)
            if number in (30, 50):
                second.step()
    assert any(on[:30])
    assert not any(on[31:])
    # The first time it comes as a surprise: that step has been written, and the second optimizer has one of its own.
    assert len(open_run(tmp_path / "run").steps()) == STEPS + 1


@pytest.mark.parametrize(
    ("happening", "update"),
    [
        *((plain, update) for update in (None, *UPDATES, partly_by_replacing)),
        *((happening, None) for happening in (accumulating, evaluating_inside, going_back_at_times)),
        (accumulating, by_replacing),
    ],
    ids=lambda value: value.__name__ if value else "optimizer",
)
def test_the_gradient_norm_is_the_same(tmp_path: Path, happening: Happening, update: Any) -> None:
    norms = []
    for name, limits in (("fast", DEFAULT_LIMITS), ("full", NO_FAST_PATH)):
        loop = Loop(update)
        with watching_within(replace(limits, norm_interval=1), loop.model, tmp_path / name, save_interval=1000):
            for number in range(STEPS):
                happening(loop, number)
        norms.append(open_run(tmp_path / name).scalars("gradient_norm"))
    np.testing.assert_array_equal(norms[0], norms[1])
    # None of the first step of a script: before its update nothing says that there will be any.
    assert len(norms[0][0]) == STEPS - (update is not None)


def test_the_gradient_norm_of_several_optimizers_is_whole(tmp_path: Path) -> None:
    """Whether it is affordable is decided anew after each: in the middle of a step the rest must not be left out."""
    loop = Loop()
    optimizers = [torch.optim.SGD([parameter], lr=0.05) for parameter in loop.model.parameters()]
    limits, expected = replace(DEFAULT_LIMITS, norm_share=1e-9, norm_interval=16), []
    with watching_within(limits, loop.model, tmp_path / "run", save_interval=1000):
        for _ in range(STEPS):
            loop.model.zero_grad()
            loop.backward()
            parts = [each.grad.norm() for each in loop.model.parameters() if each.grad is not None]
            expected.append(float(torch.stack(parts).norm()))
            for optimizer in optimizers:
                optimizer.step()
    steps, norms = open_run(tmp_path / "run").scalars("gradient_norm")
    assert 3 < len(steps) < STEPS
    np.testing.assert_allclose(norms, np.array(expected)[steps], rtol=1e-5)


def test_a_hook_that_closes_in_the_middle_of_a_step_keeps_what_it_saw(tmp_path: Path) -> None:
    loop = Loop()
    with watchglass.watch(loop.model, run=tmp_path / "run", save_interval=1000, strict=True):
        for _ in range(STEPS):
            loop.step()
        loop.backward()
    run = open_run(tmp_path / "run")
    assert len(run.scalars("loss")[0]) == STEPS + 1


def test_a_steady_step_keeps_nothing_of_the_training_alive(tmp_path: Path) -> None:
    loop = Loop()
    with watchglass.watch(loop.model, run=tmp_path / "run", save_interval=1000, strict=True):
        for _ in range(STEPS):
            loop.step()
        output = loop.model(loop.inputs.clone())
        F.cross_entropy(output, loop.labels).backward()
        gone = weakref.ref(output)
        del output
        gc.collect()
        assert gone() is None
        loop.optimizer.step()


@pytest.mark.parametrize("interval", [1, 1000])
def test_a_training_run_that_is_over_leaves_nothing_behind(tmp_path: Path, interval: int) -> None:
    def trained(path: Path) -> tuple[Any, dict[str, weakref.ref[Any]]]:
        loop = Loop()
        loop.optimizer = torch.optim.Adam(loop.model.parameters())
        hook = watchglass.watch(loop.model, run=path, save_interval=interval, strict=True)
        for _ in range(STEPS):
            loop.step()
        state = next(iter(loop.optimizer.state.values()))
        parts = {"model": loop.model, "optimizer": loop.optimizer, "state": state["exp_avg"], "batch": loop.inputs}
        return hook, {name: weakref.ref(part) for name, part in parts.items()}

    def living(parts: dict[str, weakref.ref[Any]]) -> list[str]:
        gc.collect()
        return [name for name, part in parts.items() if part() is not None]

    hook, parts = trained(tmp_path / "watched")
    # The next one is built while the hook is still open.
    assert living(parts) == []
    hook.close()
    hook, parts = trained(tmp_path / "closed")
    hook.close()
    assert living(parts) == []
    gone = weakref.ref(hook)
    del hook
    gc.collect()
    assert gone() is None, "the adapter goes with it"


class WithParameter(nn.Module):
    """Returns a parameter as it is, as policies return the logarithm of their standard deviation."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.spread = layers, nn.Parameter(torch.zeros(3))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.layers(inputs), self.spread


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, NO_FAST_PATH], ids=["fast", "full"])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_parameter_that_a_model_returns_keeps_no_hooks(tmp_path: Path, limits: CaptureLimits, calls: int) -> None:
    model, inputs = WithParameter(Loop().model), torch.randn(16, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching_within(limits, model, tmp_path / "run", save_interval=1000):
        for _ in range(STEPS):
            returned = [model(inputs) for _ in range(calls)]
            optimizer.zero_grad()
            sum((output * spread.exp()).square().mean() for output, spread in returned).backward()
            optimizer.step()
    assert not model.spread._backward_hooks
    run = open_run(tmp_path / "run")
    assert (len(run.steps()), len(run.steps(Mode.EVAL))) == (STEPS, 0)


def test_a_discovered_model_may_go_and_another_take_its_place(tmp_path: Path) -> None:
    hook = watchglass.Hook(run=tmp_path / "run", save_interval=1000, strict=True)
    PyTorchAdapter(hook.port, discover=True)
    gone = []
    for _ in range(2):
        loop = Loop()
        for _ in range(STEPS):
            loop.step()
        gone.append(weakref.ref(loop.model))
        del loop
        gc.collect()
        assert gone[-1]() is None
    hook.close()
    assert len(open_run(tmp_path / "run").steps()) >= 2 * STEPS - 1, "the second is found by its first update"


class Distillation:
    """A student, and a teacher that is averaged by hand."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.teacher, self.assistant = Loop().model, Loop().model
        self.teacher.insert(1, nn.BatchNorm1d(8))
        self.criterion = Criterion()
        self.save: Callable[[str, float], None]

    @torch.no_grad()
    def soft(self, teacher: nn.Module | None = None) -> Tensor:
        return (teacher or self.teacher)(self.loop.inputs).softmax(1)  # type: ignore[no-any-return]

    def learn(self, wanted: Tensor | None) -> None:
        loop = self.loop
        output = loop.model(loop.inputs)
        wanted = self.soft() if wanted is None else wanted
        loop.optimizer.zero_grad()
        (self.criterion(output, loop.labels) + F.mse_loss(output.softmax(1), wanted)).backward()
        loop.optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(self.assistant.parameters(), loop.model.parameters(), strict=True):
                mean.mul_(0.99).add_(parameter, alpha=0.01)

    @torch.no_grad()
    def evaluate(self, *models: nn.Module) -> None:
        for model in models:
            self.criterion(model(self.loop.inputs), self.loop.labels)


class Criterion(nn.Module):
    """A loss that a script has written as a module."""

    def forward(self, output: Tensor, labels: Tensor) -> Tensor:
        return -output.log_softmax(1).gather(1, labels[:, None]).mean()


Between = Callable[[Distillation, int], None]


def teacher_inside(it: Distillation, number: int) -> None:
    it.learn(None)
    if number % 30 == 29:
        it.evaluate(it.teacher, it.loop.model)


def teacher_ahead(it: Distillation, number: int) -> None:
    it.learn(it.soft())
    if number % 30 == 29:
        it.evaluate(it.teacher, it.loop.model)


def two_teachers(it: Distillation, number: int) -> None:
    it.learn(0.5 * it.soft() + 0.5 * it.soft(it.assistant))
    if number == 30:
        it.learn(it.soft(it.assistant))
    if number == 45:
        it.soft()
        it.evaluate(it.loop.model)


def one_teacher_twice(it: Distillation, number: int) -> None:
    it.learn(0.5 * it.soft() + 0.5 * it.soft())
    if number == 30:
        it.soft()
        it.soft()
        it.soft()


def a_call_too_many(it: Distillation, number: int) -> None:
    if number in (30, 31, 50):
        it.soft()
    it.learn(it.soft())


def teacher_judged(it: Distillation, number: int) -> None:
    """With the result of the call that would be a teacher's."""
    wanted = it.soft()
    if number in (30, 31):
        F.cross_entropy(wanted, it.loop.labels)
    if number == 45:
        it.criterion(wanted, it.loop.labels)
    it.learn(wanted)


def teacher_judged_at_the_end(it: Distillation, number: int) -> None:
    it.learn(it.soft())
    if number == STEPS - 1:
        F.cross_entropy(it.soft(), it.loop.labels)


def only_called_at_the_end(it: Distillation, number: int) -> None:
    it.learn(it.soft())
    if number == STEPS - 1:
        it.soft()


def student_evaluated_after_the_teacher(it: Distillation, number: int) -> None:
    wanted = it.soft()
    if number in (30, 45):
        it.evaluate(it.loop.model)
    it.learn(wanted)


def another_called_after_the_teacher(it: Distillation, number: int) -> None:
    wanted = it.soft()
    if number in (30, 45):
        it.evaluate(it.assistant)
    it.learn(wanted)


def teacher_in_another_mode(it: Distillation, number: int) -> None:
    it.teacher.train(number < 30)
    it.learn(it.soft())


def teacher_with_gradients(it: Distillation, number: int) -> None:
    it.learn(it.teacher(it.loop.inputs).softmax(1).detach() if number == 30 else it.soft())


def teacher_stumbling(it: Distillation, number: int) -> None:
    if number == 30:
        with pytest.raises(RuntimeError), torch.no_grad():
            it.teacher(it.loop.inputs[:, :5])
    it.learn(it.soft())


def teacher_missing(it: Distillation, number: int) -> None:
    it.learn(torch.full((16, 3), 1 / 3) if number in (30, 31, 45) else it.soft())


def teacher_updated(it: Distillation, number: int) -> None:
    wanted = it.soft()
    if number == 30:
        optimizer = torch.optim.SGD(it.teacher.parameters(), lr=0.01)
        F.cross_entropy(it.teacher(it.loop.inputs), it.loop.labels).backward()
        optimizer.step()
    it.learn(wanted)


def saving_after_the_teacher(it: Distillation, number: int) -> None:
    wanted = it.soft()
    if number in (30, 33, 45):
        it.save("reward", number)
    it.learn(wanted)


def teacher_ahead_of_many(it: Distillation, number: int) -> None:
    it.soft()
    many(it.loop, number, left=number == 40)


@pytest.mark.parametrize(
    ("between", "interval"),
    [
        *(
            (between, 1000)
            for between in [
                teacher_inside, teacher_ahead, two_teachers, one_teacher_twice, a_call_too_many, teacher_judged,
                teacher_judged_at_the_end, only_called_at_the_end, student_evaluated_after_the_teacher,
                another_called_after_the_teacher, teacher_in_another_mode, teacher_with_gradients, teacher_stumbling,
                teacher_missing, teacher_updated, saving_after_the_teacher, teacher_ahead_of_many,
            ]
        ),
        *((between, 13) for between in (teacher_inside, teacher_ahead, teacher_judged, teacher_ahead_of_many)),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)  # fmt: skip
def test_a_teacher_that_is_called_without_gradients_leaves_a_step_on_the_fast_path(
    tmp_path: Path, between: Between, interval: int
) -> None:
    """Ahead of a step its call may also be an evaluation: what follows it shows that."""

    def recorded_of(path: Path, limits: CaptureLimits) -> tuple[Any, int]:
        it, taken = Distillation(), 0
        hook = watchglass.Hook(run=path, save_interval=interval, strict=True, limits=replace(limits, norm_interval=1))
        adapter = PyTorchAdapter(hook.port, discover=True)
        it.save = hook.save_scalar
        for number in range(STEPS):
            between(it, number)
            taken += adapter.fast_path.on
        hook.close()
        run = open_run(path)
        rows = {
            f"{mode.name} {name}": [each.tolist() for each in run.scalars(name, mode=mode)]
            for mode in (Mode.TRAIN, Mode.EVAL)
            for name in run.tensor_names()
            if name in run.tensor_names(role="loss") or name in run.tensor_names(role="metric")
        }
        facts = [
            (fact.kind, fact.global_step, fact.data)
            for fact in run.facts()
            if fact.kind in ("running_statistics", "training_flags", "model", "tensor_reads", "capture_fault")
        ]
        places = [[run.global_step(step, mode) for step in run.steps(mode)] for mode in (Mode.TRAIN, Mode.EVAL)]
        return (rows, places, facts), taken

    content, taken = recorded_of(tmp_path / "fast", DEFAULT_LIMITS)
    assert taken >= 8
    expected, none = recorded_of(tmp_path / "full", NO_FAST_PATH)
    assert none == 0
    assert content == expected


def test_short_steps_with_a_teacher_inside_are_only_counted(tmp_path: Path) -> None:
    it = Distillation()
    hook = watchglass.Hook(run=tmp_path / "run", save_interval=1000, strict=True, limits=SHORT_STEPS)
    PyTorchAdapter(hook.port, discover=True)
    for number in range(STEPS):
        teacher_inside(it, number)
    hook.close()
    run = open_run(tmp_path / "run")
    assert len(run.steps(Mode.TRAIN)) < 0.75 * STEPS
    assert [count_steps(run, mode) for mode in (Mode.TRAIN, Mode.EVAL)] == [STEPS, 4]


class Rivals:
    """A generator and a discriminator."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.generator, self.discriminator = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
        self.first = torch.optim.SGD(self.discriminator.parameters(), lr=0.01)
        self.second = torch.optim.SGD(self.generator.parameters(), lr=0.01)
        self.real, self.noise = torch.randn(8, 6), torch.randn(8, 3)
        self.save: Callable[[str, float], None]

    def judged(self, given: Tensor, real: bool) -> Tensor:
        wanted = torch.full((len(given), 1), float(real))
        return F.binary_cross_entropy_with_logits(self.discriminator(given), wanted)

    def discriminate(self, *, apart: bool = False) -> Tensor:
        with torch.set_grad_enabled(not apart):
            made: Tensor = self.generator(self.noise)
        self.first.zero_grad()
        (self.judged(self.real, True) + self.judged(made.detach(), False)).backward()
        self.first.step()
        return made

    def generate(self, made: Tensor) -> None:
        self.second.zero_grad()
        self.judged(made, True).backward()
        self.second.step()

    @torch.no_grad()
    def evaluate(self) -> None:
        F.mse_loss(self.generator(self.noise), self.real)


def rivals(it: Rivals, number: int) -> None:
    it.generate(it.discriminate())


def rivals_apart(it: Rivals, number: int) -> None:
    """The discriminator learns from what is made without gradients."""
    it.discriminate(apart=True)
    it.generate(it.generator(it.noise))


def rivals_that_are_evaluated(it: Rivals, number: int) -> None:
    rivals(it, number)
    if number in (30, 45, STEPS - 1):
        it.evaluate()
        it.evaluate()


def rivals_that_are_evaluated_between(it: Rivals, number: int) -> None:
    made = it.discriminate()
    if number in (31, 46):
        it.evaluate()
    it.generate(made)


def rivals_that_save(it: Rivals, number: int) -> None:
    loss = it.judged(it.discriminate(), True)
    if number in (33, 46):
        it.save("reward", number)
    it.second.zero_grad()
    loss.backward()
    it.second.step()


def rivals_out_of_turn(it: Rivals, number: int) -> None:
    made = it.discriminate()
    if number in (34, 47):
        it.discriminate()
    if number not in (41, 53):
        it.generate(made)


def several_critics(it: Rivals, number: int) -> None:
    made = it.discriminate()
    if number % 3 == 2:
        it.generate(made)


def rivals_that_blow_up(it: Rivals, number: int) -> None:
    if number == 50:
        it.real[0, 0] = math.nan
    rivals(it, number)


@pytest.mark.parametrize(
    "between",
    [
        rivals, rivals_apart, rivals_that_are_evaluated, rivals_that_are_evaluated_between, rivals_that_save,
        rivals_out_of_turn, several_critics, rivals_that_blow_up, teacher_inside, teacher_ahead, two_teachers,
        a_call_too_many, teacher_judged, teacher_judged_at_the_end, only_called_at_the_end,
        student_evaluated_after_the_teacher, another_called_after_the_teacher, teacher_in_another_mode,
        teacher_missing, teacher_updated, saving_after_the_teacher,
    ],
    ids=lambda it: it.__name__,
)  # fmt: skip
@pytest.mark.parametrize("interval", [1000, 13])
def test_short_steps_of_several_models_are_counted_and_what_is_recorded_of_them_is_right(
    tmp_path: Path, between: Callable[[Any, int], None], interval: int
) -> None:
    def recorded_of(path: Path, limits: CaptureLimits) -> dict[str, Any]:
        it: Any = Rivals() if between.__name__.startswith(("rivals", "several")) else Distillation()
        hook = watchglass.Hook(run=path, save_interval=interval, strict=True, limits=replace(limits, norm_interval=1))
        PyTorchAdapter(hook.port, discover=True)
        it.save = hook.save_scalar
        for number in range(2 * STEPS):
            between(it, number)
        hook.close()
        run = open_run(path)
        models = (it.generator, it.discriminator) if isinstance(it, Rivals) else (it.loop.model,)
        content: dict[str, Any] = {"weights": [repr(each.tolist()) for model in models for each in model.parameters()]}
        content["count"] = [count_steps(run, mode) for mode in (Mode.TRAIN, Mode.EVAL)]
        content["models"] = [(each.name, each.train_steps) for each in models_of(run)]
        content["captures"] = sorted(
            {name: run.tensor(name).steps() for name in run.tensor_names(role="weight")}.items()
        )
        for mode in (Mode.TRAIN, Mode.EVAL):
            content[mode.name] = {step: run.global_step(step, mode) for step in run.steps(mode)}
            for name in run.tensor_names():
                if name in (*run.tensor_names(role="loss"), *run.tensor_names(role="metric"), "reward"):
                    steps, values = run.scalars(name, mode=mode)
                    content[f"{mode.name} {name}"] = dict(zip(steps.tolist(), map(repr, values.tolist()), strict=True))
        return content

    content = recorded_of(tmp_path / "fast", SHORT_STEPS)
    expected = recorded_of(tmp_path / "full", NO_FAST_PATH)
    for name in ("weights", "count", "captures"):
        assert content[name] == expected[name], name
    # Steps that were not recorded are divided up as those after them: exact for whole cycles.
    for (name, steps), (_, all_steps) in zip(content["models"], expected["models"], strict=True):
        assert abs(steps - all_steps) <= 1, name
    assert len(content["TRAIN"]) < len(expected["TRAIN"])
    if between is rivals:
        # As rules count them.
        assert [replay(tmp_path / name).train_steps for name in ("fast", "full")] == [4 * STEPS] * 2
    for name in expected.keys() - {"weights", "count", "models", "captures"}:
        if name.startswith("EVAL"):
            assert content.get(name, {}) == expected[name], name
        else:
            assert content.get(name, {}).items() <= expected[name].items(), name


def test_what_another_thread_trains_is_not_ours(tmp_path: Path) -> None:
    other = Loop()

    def elsewhere(call: Callable[[], Any]) -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    def disturbed(loop: Loop, number: int) -> None:
        loop.optimizer.zero_grad()
        loss = loop.loss()
        elsewhere(lambda: other.backward(4))
        elsewhere(other.optimizer.step)
        loss.backward()
        elsewhere(lambda: torch.amp.GradScaler("cpu").scale(torch.ones(())))
        elsewhere(other.optimizer.step)
        loop.optimizer.step()

    expected, _ = recorded(tmp_path / "alone", plain)
    content, taken = recorded(tmp_path / "disturbed", disturbed)
    assert content == expected
    assert taken >= 30, "it disturbs nothing"


def twice_backward(loop: Loop, number: int) -> None:
    loop.optimizer.zero_grad()
    loss = loop.loss()
    loss.backward(retain_graph=True)
    (0.1 * loss).backward()
    loop.optimizer.step()


def weighted(loop: Loop, number: int) -> None:
    loop.optimizer.zero_grad()
    loss = loop.loss()
    loss.backward(torch.ones_like(loss))
    loop.optimizer.step()


def never_finite(loop: Loop, number: int) -> None:
    loop.optimizer.zero_grad()
    (math.inf * loop.loss()).backward()
    loop.optimizer.zero_grad()
    loop.optimizer.step()


def evaluated_at_every_step(loop: Loop, number: int) -> None:
    plain(loop, number)
    loop.evaluate()


@pytest.mark.parametrize(
    ("happening", "most"),
    [(twice_backward, 0), (weighted, 0), (never_finite, 0), (evaluated_at_every_step, STEPS // 8)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_pattern_that_the_fast_path_cannot_follow_is_not_tried_at_every_step(
    tmp_path: Path, happening: Happening, most: int
) -> None:
    _, taken = recorded(tmp_path / "run", happening)
    assert taken <= most


def test_a_loss_on_a_device_is_left_to_the_full_path(tmp_path: Path) -> None:
    from devices.fake_device import DEVICE, FakeDevice, move

    loop = Loop()
    with FakeDevice(lambda name: None):
        model = move(loop.model)
        loop.optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        loop.inputs, loop.labels = loop.inputs.to(DEVICE), loop.labels.to(DEVICE)
        with watchglass.watch(model, run=tmp_path / "run", save_interval=1000, strict=True) as hook:
            adapter = PyTorchAdapter.of(hook.port)
            assert adapter is not None
            taken = 0
            for _ in range(STEPS):
                loop.step()
                taken += adapter.fast_path.on
    assert taken == 0
    assert len(open_run(tmp_path / "run").scalars("loss")[0]) == STEPS


def test_a_group_that_is_added_on_the_way_has_its_learning_rate_recorded(tmp_path: Path) -> None:
    def unfreezing(loop: Loop, number: int) -> None:
        if number == 0:
            loop.optimizer = torch.optim.SGD(loop.model[0].parameters(), lr=0.05)
        if number == 40:
            loop.optimizer.add_param_group({"params": list(loop.model[2].parameters()), "lr": 0.01})
        loop.step()

    recorded(tmp_path / "run", unfreezing)
    run = open_run(tmp_path / "run")
    rates = [name for name in run.tensor_names() if name.startswith("learning_rate")]
    assert len(rates) >= 2
    assert {0.05, 0.01} <= {float(value) for name in rates for value in run.scalars(name)[1]}
    assert max(max(run.scalars(name)[0]) for name in rates) == STEPS - 1
