"""The order of calls as facts: what a sick loop and a healthy one look like, on whatever path their steps take."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler

import watchglass
from facts_of import batch, classifier, facts, watching
from watchglass.capture.pytorch.facts.call_order import CallOrder

Names = list[str]
Loop = Callable[[nn.Module, torch.optim.Optimizer, Any, int], None]


def backward(model: nn.Module, number: int) -> None:
    inputs, labels = batch(number)
    F.cross_entropy(model(inputs), labels).backward()


def healthy(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, number: int) -> None:
    optimizer.zero_grad()
    backward(model, number)
    optimizer.step()
    scheduler.step()


def train(run: Path, loop: Loop, steps: int = 6, **settings: Any) -> None:
    model = classifier()
    with watching(model, run, **settings):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = lr_scheduler.StepLR(optimizer, 100)
        for number in range(steps):
            loop(model, optimizer, scheduler, number)


def orders(run: Path) -> list[Names]:
    """Different orders, in the order in which they first came; a call n times in a row is there n times."""
    found: list[Names] = []
    for data in facts(run, "calls"):
        for row in data["orders"]:
            names = [name for name, times in row["calls"] for _ in range(times)]
            if names not in found:
                found.append(names)
    return found


def objects(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = facts(run, "calls")[-1]["objects"]
    return found


USUAL = ["backward", "optimizer.step", "scheduler.step", "optimizer.zero_grad"]


def test_a_healthy_loop_has_one_order_after_its_first_round(run_path: Path) -> None:
    train(run_path, healthy)
    assert orders(run_path) == [["optimizer.zero_grad", *USUAL], USUAL]
    assert objects(run_path) == {
        "optimizer": {"type": "SGD", "scheduled": True},
        "scheduler": {"type": "StepLR", "optimizer": "optimizer", "observed": True, "stepped": True},
    }


def test_zero_grad_at_the_end_of_the_loop_is_the_same_order(run_path: Path) -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, number: int) -> None:
        backward(model, number)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    train(run_path, loop)
    assert orders(run_path) == [USUAL]


def no_zero_grad(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, number: int) -> None:
    backward(model, number)
    optimizer.step()
    scheduler.step()


def zero_grad_before_step(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, number: int) -> None:
    backward(model, number)
    optimizer.zero_grad()
    optimizer.step()
    scheduler.step()


def scheduler_before_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, number: int) -> None:
    optimizer.zero_grad()
    backward(model, number)
    scheduler.step()
    optimizer.step()


def scheduler_never(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, number: int) -> None:
    optimizer.zero_grad()
    backward(model, number)
    optimizer.step()


def scheduler_twice(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, number: int) -> None:
    healthy(model, optimizer, scheduler, number)
    scheduler.step()


def optimizer_twice(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, number: int) -> None:
    optimizer.zero_grad()
    backward(model, number)
    optimizer.step()
    optimizer.step()


def accumulating(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, number: int) -> None:
    model.zero_grad()
    for part in range(3):
        backward(model, 3 * number + part)
    optimizer.step()


def skipping(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, number: int) -> None:
    optimizer.zero_grad()
    backward(model, number)
    if number % 3:
        optimizer.step()


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        (no_zero_grad, ["backward", "optimizer.step", "scheduler.step"]),
        (zero_grad_before_step, ["backward", "optimizer.zero_grad", "optimizer.step", "scheduler.step"]),
        (scheduler_never, ["backward", "optimizer.step", "optimizer.zero_grad"]),
        (scheduler_twice, ["backward", "optimizer.step", "scheduler.step", "scheduler.step", "optimizer.zero_grad"]),
        (optimizer_twice, ["backward", "optimizer.step", "optimizer.step", "optimizer.zero_grad"]),
        (accumulating, ["backward", "backward", "backward", "optimizer.step", "module.zero_grad"]),
    ],
)
def test_each_mistake_has_an_order_of_its_own(run_path: Path, loop: Loop, expected: Names) -> None:
    train(run_path, loop)
    assert orders(run_path)[-1] == expected
    assert "scheduler" in objects(run_path)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_scheduler_before_the_optimizer_is_distinguished_from_one_behind(run_path: Path) -> None:
    train(run_path, scheduler_before_optimizer)
    assert orders(run_path)[-1] == ["backward", "scheduler.step", "optimizer.step", "optimizer.zero_grad"]


def test_a_training_run_that_never_steps_has_orders_without_a_step(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        forgotten = torch.optim.SGD(classifier().parameters(), lr=0.1)
        for number in range(5):
            forgotten.zero_grad()
            backward(model, number)
        optimizer.step()  # so that there is a step to write to
    assert orders(run_path)[-1] == ["optimizer.zero_grad", "backward"]


def test_rounds_left_out_now_and_then_do_not_fill_the_run(run_path: Path) -> None:
    train(run_path, skipping, steps=90)
    assert len(facts(run_path, "calls")) < 8
    assert ["backward", "optimizer.step", "optimizer.zero_grad"] in orders(run_path)


def test_how_often_orders_came_is_reported_now_and_then() -> None:
    """At any step, also where one order comes again and again: known after 16 rounds, then after each 1024."""
    heard, recorded = CallOrder(lambda: None), []
    for _ in range(2100):
        heard.backward()
        heard.step_begins(1)
        heard.step_ended(1, lambda: "optimizer.step")
        heard.zero_grad("optimizer.zero_grad")
        if heard.has_changed():
            recorded.append(heard.record().to_data())
    assert [data["rounds"] for data in recorded] == [16, 16 + 1024, 16 + 2 * 1024]
    assert [[row["times"] for row in data["orders"]] for data in recorded] == [[16], [1024], [1024]]


def test_between_captures_steps_that_are_alike_are_not_heard(run_path: Path) -> None:
    before = torch.optim.Optimizer.zero_grad
    awake = []

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, number: int) -> None:
        awake.append(torch.optim.Optimizer.zero_grad is not before)
        healthy(model, optimizer, scheduler, number)

    train(run_path, loop, steps=110, save_interval=50)
    # Around captures it is, until the round that began with the captured step is over.
    assert [number for number, heard in enumerate(awake) if heard and number > 20] == [50, 51, 100, 101]


def test_a_change_between_two_captures_is_recorded_at_the_second(run_path: Path) -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, number: int) -> None:
        (no_zero_grad if number >= 40 else healthy)(model, optimizer, scheduler, number)

    train(run_path, loop, steps=70, save_interval=60)
    changed = [fact for fact in watchglass.open_run(run_path).facts("calls") if fact.data["orders"]]
    assert [fact.global_step for fact in changed] == [1, 2, 61]
    assert changed[-1].data["orders"][-1]["calls"] == [["backward", 1], ["optimizer.step", 1], ["scheduler.step", 1]]


def test_two_optimizers_that_alternate_have_two_orders(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        first = torch.optim.SGD(model[0].parameters(), lr=0.1)
        second = torch.optim.SGD(model[4].parameters(), lr=0.1)
        for number in range(40):
            chosen = (first, second)[number % 2]
            chosen.zero_grad()
            backward(model, number)
            chosen.step()
    known = orders(run_path)
    assert ["backward", "optimizer.step", "optimizer_2.zero_grad"] in known
    assert ["backward", "optimizer_2.step", "optimizer.zero_grad"] in known
    assert len(facts(run_path, "calls")) < 10


def test_a_closure_is_part_of_its_optimizers_step(run_path: Path) -> None:
    model = nn.Linear(6, 3)
    with watching(model, run_path):
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        for number in range(4):

            def closure(number: int = number) -> torch.Tensor:
                optimizer.zero_grad()
                inputs, labels = batch(number)
                loss = F.cross_entropy(model(inputs), labels)
                loss.backward()
                return loss

            optimizer.step(closure)
    assert orders(run_path) == [["optimizer.step", "optimizer.step/optimizer.zero_grad", "optimizer.step/backward"]]


def test_an_optimizer_that_calls_another_is_one_call(run_path: Path) -> None:
    class Careful(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    model = classifier()
    with watching(model, run_path):
        optimizer = Careful(model.parameters(), lr=0.1)
        for number in range(4):
            optimizer.zero_grad()
            backward(model, number)
            optimizer.step()
    assert orders(run_path)[-1] == ["backward", "optimizer.step", "optimizer.zero_grad"]


def test_a_step_left_by_an_exception_is_forgotten(run_path: Path) -> None:
    model = classifier()
    failing = True

    def fail(optimizer: Any, args: Any, kwargs: Any) -> None:
        if failing:
            raise KeyboardInterrupt

    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = optimizer.register_step_pre_hook(fail)
        for number in range(6):
            failing = number == 1
            optimizer.zero_grad()
            backward(model, number)
            try:
                optimizer.step()
            except KeyboardInterrupt:
                continue
        handle.remove()
    assert orders(run_path)[-1] == ["backward", "optimizer.step", "optimizer.zero_grad"]


def test_an_optimizer_for_each_parameter_stays_bounded(run_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(40)), nn.Linear(6, 3))
    with watching(model, run_path):
        optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

        def update(parameter: nn.Parameter) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        handles = [p.register_post_accumulate_grad_hook(update) for p in model.parameters()]
        for number in range(4):
            backward(model, number)
        for handle in handles:
            handle.remove()
    last = orders(run_path)[-1]
    assert last[:2] == ["backward", "optimizer.step"]
    assert last[-1] == "..."
    assert len(last) < 100
    assert len(objects(run_path)) == 8


def test_a_scheduler_made_of_others_is_one(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        warm = lr_scheduler.LinearLR(optimizer, 0.5, total_iters=3)
        then = lr_scheduler.CosineAnnealingLR(optimizer, 10)
        scheduler = lr_scheduler.SequentialLR(optimizer, [warm, then], milestones=[3])
        for number in range(6):
            healthy(model, optimizer, scheduler, number)
    known = [name for name in objects(run_path) if name.startswith("scheduler")]
    assert [objects(run_path)[name]["type"] for name in known] == ["SequentialLR"]
    assert orders(run_path)[-1] == ["backward", "optimizer.step", f"{known[0]}.step", "optimizer.zero_grad"]


def test_schedulers_that_step_in_ways_of_their_own_are_heard(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
        for number in range(4):
            optimizer.zero_grad()
            backward(model, number)
            optimizer.step()
            plateau.step(1.0)
    assert orders(run_path)[-1] == ["backward", "optimizer.step", "scheduler.step", "optimizer.zero_grad"]


def test_a_scheduler_whose_steps_cannot_be_heard_says_so(run_path: Path) -> None:
    class Silent(lr_scheduler.LRScheduler):
        def get_lr(self) -> list[Any]:
            return [group["lr"] for group in self.optimizer.param_groups]

        def step(self, epoch: Any = None) -> None:
            self._step_count = getattr(self, "_step_count", 0) + 1

    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = Silent(optimizer)
        for number in range(3):
            healthy(model, optimizer, scheduler, number)
    assert objects(run_path)["scheduler"]["observed"] is False


def test_a_scheduler_that_was_there_before_shows_in_its_optimizer(run_path: Path) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lr_scheduler.StepLR(optimizer, 5)
    with watching(model, run_path):
        for number in range(3):
            optimizer.zero_grad()
            backward(model, number)
            optimizer.step()
    assert objects(run_path) == {"optimizer": {"type": "SGD", "scheduled": True}}


def test_a_scalers_calls_and_the_clip_between_them_are_in_order(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for number in range(4):
            optimizer.zero_grad()
            inputs, labels = batch(number)
            scaler.scale(F.cross_entropy(model(inputs), labels)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    expected = ["backward", "scaler.unscale_", "clip_grad_norm_", "scaler.step", "optimizer.step", "scaler.update"]
    assert orders(run_path)[-1] == [*expected, "optimizer.zero_grad"]


def test_a_skipped_update_ends_its_round(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for number in range(6):
            optimizer.zero_grad()
            inputs, labels = batch(number)
            loss = F.cross_entropy(model(inputs), labels) * (float("inf") if number == 2 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert ["backward", "scaler.step", "scaler.update", "optimizer.zero_grad"] in orders(run_path)


def wrapped_places() -> list[Any]:
    return [
        torch.autograd.backward, torch.optim.Optimizer.zero_grad, nn.Module.zero_grad, lr_scheduler.LRScheduler.step,
        lr_scheduler.LRScheduler.__init__, lr_scheduler.ReduceLROnPlateau.step, lr_scheduler.SequentialLR.step,
        torch.amp.GradScaler.step, torch.amp.GradScaler.update, torch.amp.GradScaler.unscale_,
        nn.utils.clip_grad_norm_, nn.utils.clip_grad.clip_grad_norm_, nn.utils.clip_grad_value_,
        torch.utils.data.DataLoader.__iter__,
    ]  # fmt: skip


def test_wrappers_keep_signatures_and_leave_nothing_behind(tmp_path: Path) -> None:
    before = wrapped_places()
    with watching(classifier(), tmp_path / "one"):
        inside = wrapped_places()
        with watching(classifier(), tmp_path / "two"):
            pass
        assert all(a is b for a, b in zip(inside, wrapped_places(), strict=True))
    assert all(a is b for a, b in zip(before, wrapped_places(), strict=True))
    assert all(a is not b for a, b in zip(before, inside, strict=True))
    assert [inspect.signature(a) for a in before] == [inspect.signature(a) for a in inside]


def test_a_wrapped_function_can_be_pickled(run_path: Path) -> None:
    with watching(classifier(), run_path):
        assert pickle.loads(pickle.dumps(nn.utils.clip_grad_norm_)) is nn.utils.clip_grad_norm_  # noqa: S301  our own


def test_what_is_switched_off_is_not_wrapped(run_path: Path) -> None:
    before = nn.utils.clip_grad_norm_, torch.optim.Optimizer.zero_grad
    with watching(classifier(), run_path, facts=("loss_call",)):
        assert before == (nn.utils.clip_grad_norm_, torch.optim.Optimizer.zero_grad)


def test_compiled_code_is_passed_through(run_path: Path) -> None:
    model = classifier()
    backward(model, 0)
    with watching(model, run_path):
        clip = torch.compile(lambda: nn.utils.clip_grad_norm_(model[0].weight, 1e-3), backend="eager", fullgraph=True)
        clip()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            optimizer.zero_grad()
            backward(model, number)
            optimizer.step()
    assert model[0].weight.grad is not None
    assert not any("clip" in name for names in orders(run_path) for name in names)
    assert facts(run_path, "clip") == []


def test_a_function_that_another_patch_covered_for_a_while_is_heard_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = torch.optim.Optimizer.zero_grad

    def patched(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        original(self, set_to_none)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Optimizer, "zero_grad", patched)
        with watching(classifier(), tmp_path / "patched"):
            patch.undo()
    train(tmp_path / "later", healthy)
    assert orders(tmp_path / "later")[-1] == USUAL
    assert torch.optim.Optimizer.zero_grad is original
