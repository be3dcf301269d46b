"""Facts of gradients: what is left over of the step before, what clipping finds, what a scaler multiplies with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from devices.fake_device import DEVICE, FakeDevice, move
from facts_of import batch, classifier, facts, facts_by_step, watching
from watchglass import open_run

Clear = Callable[[nn.Module, torch.optim.Optimizer], None]


def nothing(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    pass


def to_none(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()


def to_zero(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=False)


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def by_hand_in_place(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()


@pytest.mark.parametrize(
    ("clear", "present", "nonzero"),
    [(nothing, 4, 4), (to_none, 0, 0), (to_zero, 4, 0), (by_hand, 0, 0), (by_hand_in_place, 4, 0)],
)
def test_gradients_that_were_not_cleared_are_left_over(
    run_path: Path, clear: Clear, present: int, nonzero: int
) -> None:
    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(5):
            inputs, labels = batch(number)
            output = model(inputs)
            clear(model, optimizer)  # as late as can be
            F.cross_entropy(output, labels).backward()
            optimizer.step()
    last = facts(run_path, "leftover_gradients")[-1]
    assert last == {"optimizer": "optimizer", "looked_at": 4, "present": present, "nonzero": nonzero}
    # By the second capture all is known, and said once.
    assert len(facts(run_path, "leftover_gradients")) <= 2


@pytest.mark.parametrize("clears", [False, True])
def test_gradients_of_updates_that_the_script_writes_are_examined_too(run_path: Path, clears: bool) -> None:
    model = classifier()
    with watching(model, run_path):
        for number in range(6):
            inputs, labels = batch(number)
            F.cross_entropy(model(inputs), labels).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter -= 0.01 * parameter.grad
                    if clears:
                        parameter.grad = None
    last = facts(run_path, "leftover_gradients")[-1]
    left = 0 if clears else 4
    assert last == {"optimizer": "script", "looked_at": 4, "present": left, "nonzero": left}


def test_models_that_take_turns_have_their_own_left_over_gradients(run_path: Path) -> None:
    generator, judge = nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    with watching(generator, run_path):
        watchglass.watch(judge)
        of_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
        of_judge = torch.optim.SGD(judge.parameters(), lr=0.01)
        for _ in range(6):
            of_generator.zero_grad()
            # The step of the generator begins, and then the judge is updated: its gradients are never cleared.
            made = generator(torch.randn(4, 8))
            (judge(made.detach()).mean() - judge(torch.randn(4, 8)).mean()).backward()
            of_judge.step()
            judge(made).mean().backward()
            of_generator.step()
    found = {row["optimizer"]: row["nonzero"] > 0 for row in facts(run_path, "leftover_gradients")}
    assert found == {"optimizer": False, "optimizer_2": True}


def test_micro_batches_leave_nothing_over(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(4):
            for part in range(3):
                inputs, labels = batch(3 * number + part)
                F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [data["nonzero"] for data in facts(run_path, "leftover_gradients")] == [0]


def train(model: nn.Module, clip: Callable[[], Any], steps: int = 4) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = []
    for number in range(steps):
        optimizer.zero_grad()
        inputs, labels = batch(number)
        F.cross_entropy(model(inputs), labels).backward()
        results.append(clip())
        optimizer.step()
    return results


def test_the_norm_before_a_clip_is_a_metric_and_its_limit_a_fact(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        norms = train(model, lambda: nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5), steps=40)
    steps, values = open_run(run_path).scalars("gradient_norm_before_clip")
    assert steps.tolist() == list(range(40))
    assert values.tolist() == [float(norm) for norm in norms]
    first, last = facts(run_path, "clip")
    assert first["max_norm"] == 0.5
    assert first["norm_type"] == 2.0
    assert first["function"] == "clip_grad_norm_"
    assert first["caller"].endswith("<lambda>")
    assert (first["calls"], last["calls"]) == (1, 32)
    exceeded = sum(float(norm) > 0.5 for norm in norms[:33])
    assert 0 < first["exceeded"] + last["exceeded"] == exceeded


def test_a_training_run_that_clips_is_bit_identical(run_path: Path) -> None:
    plain, watched = classifier(), classifier()
    torch.manual_seed(1)
    expected = train(plain, lambda: nn.utils.clip_grad_norm_(plain.parameters(), 0.5, foreach=True), steps=20)
    torch.manual_seed(1)
    with watching(watched, run_path, save_interval=4):
        found = train(watched, lambda: nn.utils.clip_grad_norm_(watched.parameters(), 0.5, foreach=True), steps=20)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    for (name, value), other in zip(plain.state_dict().items(), watched.state_dict().values(), strict=True):
        assert torch.equal(value, other), name


def test_every_way_of_clipping_is_heard(run_path: Path) -> None:
    from torch.nn.utils.clip_grad import clip_grad_norm_ as before_watching

    model = classifier()
    with watching(model, run_path):
        from torch.nn.utils.clip_grad import clip_grad_norm_ as imported

        assert imported is not before_watching

        def clip() -> None:
            parameters = list(model.parameters())
            nn.utils.clip_grad_value_(parameters, 0.1)
            imported(parameters, 2.0, norm_type=float("inf"))
            gradients = [p.grad for p in parameters if p.grad is not None]
            nn.utils.clip_grads_with_norm_(parameters, 3.0, nn.utils.get_total_norm(gradients))

        train(model, clip)
    found = {data["function"]: data for data in facts(run_path, "clip")}
    assert found["clip_grad_value_"]["clip_value"] == 0.1
    assert found["clip_grad_norm_"]["norm_type"] == "Infinity"
    assert found["clip_grads_with_norm_"]["max_norm"] == 3.0
    assert found["clip_grads_with_norm_"]["compared"] == 1


def test_a_changed_limit_is_said_at_once(run_path: Path) -> None:
    model = classifier()
    limits = iter([1.0, 1.0, 0.5, 0.5])
    with watching(model, run_path, save_interval=100):
        train(model, lambda: nn.utils.clip_grad_norm_(model.parameters(), next(limits)))
    assert {step: data["max_norm"] for step, data in facts_by_step(run_path, "clip").items()} == {0: 1.0, 2: 0.5}


def test_a_limit_that_never_stays_does_not_fill_the_run(run_path: Path) -> None:
    model = classifier()
    limits = iter(np.linspace(0.1, 2.0, 100).tolist())
    with watching(model, run_path):
        train(model, lambda: nn.utils.clip_grad_norm_(model.parameters(), next(limits)), steps=80)
    assert len(facts(run_path, "clip")) <= 32
    assert len(open_run(run_path).scalars("gradient_norm_before_clip")[0]) == 80


def test_a_norm_that_is_not_finite_exceeds_every_limit(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):

        def clip() -> Any:
            model[0].weight.grad[0, 0] = float("nan")
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            model.zero_grad()
            return norm

        train(model, clip, steps=1)
    assert facts(run_path, "clip")[0]["exceeded"] == 1
    assert np.isnan(open_run(run_path).scalars("gradient_norm_before_clip")[1]).all()


def test_a_norm_on_a_device_is_not_waited_for(run_path: Path) -> None:
    waited: list[str] = []
    norms: list[float] = []
    with FakeDevice(waited.append):
        model = move(classifier())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with watching(model, run_path, save_interval=2):
            for number in range(4):
                optimizer.zero_grad()
                inputs, labels = batch(number)
                F.cross_entropy(model(inputs.to(DEVICE)), labels.to(DEVICE)).backward()
                waited.clear()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                assert waited == ["to"], "PyTorch's own, to the device on which it computes"
                norms.append(norm.elem.item())
                optimizer.step()
    assert open_run(run_path).scalars("gradient_norm_before_clip")[1].tolist() == norms[::2]
    assert facts(run_path, "clip")[0]["compared"] == 0


class OfShards(Tensor):
    """What clipping returns for sharded parameters: each rank holds the norm of its own."""

    class _Partial:
        def is_partial(self) -> bool:
            return True

    placements = (_Partial(),)

    def to_local(self) -> Tensor:
        return self.as_subclass(Tensor)

    def full_tensor(self) -> Tensor:
        raise AssertionError("a collective that the training did not ask for")


def test_a_norm_of_shards_is_recorded_as_that(run_path: Path) -> None:
    norm = torch.tensor(3.0).as_subclass(OfShards)
    model = classifier()
    with watching(model, run_path):
        train(model, lambda: nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm), steps=1)
    opened = open_run(run_path)
    assert opened.scalars("gradient_norm_before_clip")[1].tolist() == [3.0]
    assert opened.tensor("gradient_norm_before_clip").info.placement == "partial"
    (found,) = facts(run_path, "clip")
    assert found["norm_of"] == "shards of this rank"
    assert found["compared"] == 0


def test_the_scale_is_a_metric_and_its_changes_are_facts(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        for number in range(6):
            optimizer.zero_grad()
            inputs, labels = batch(number)
            loss = F.cross_entropy(model(inputs), labels) * (float("inf") if number == 3 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    steps, values = open_run(run_path).scalars("loss_scale")
    assert dict(zip(steps.tolist(), values.tolist(), strict=True)) == {0: 8, 1: 8, 2: 16, 3: 16, 4: 8, 5: 8}
    changes = [(data.get("before"), data["scale"]) for data in facts(run_path, "loss_scale")]
    assert changes == [(None, 8.0), (8.0, 16.0), (16.0, 8.0), (8.0, 16.0)]


def test_the_scale_of_a_scaler_on_a_device_is_found_by_what_it_does(run_path: Path) -> None:
    waited: list[str] = []
    scaler = torch.amp.GradScaler("cpu", init_scale=32.0)
    with FakeDevice(waited.append):
        model = move(classifier())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with watching(model, run_path):
            inputs, labels = batch(0)
            scaler.scale(F.cross_entropy(model(inputs.to(DEVICE)), labels.to(DEVICE))).backward()
            before = scaler.state_dict()
            scaler.step(optimizer)
            assert scaler.state_dict() == before
    assert open_run(run_path).scalars("loss_scale")[1].tolist() == [32.0]


def test_a_scaler_that_is_off_has_no_scale(run_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        for number in range(2):
            optimizer.zero_grad()
            inputs, labels = batch(number)
            scaler.scale(F.cross_entropy(model(inputs), labels)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert facts(run_path, "loss_scale") == []
    assert "loss_scale" not in open_run(run_path).tensor_names()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("chosen", [None, ()])
def test_a_skipped_update_is_a_fact_that_can_be_switched_off(run_path: Path, fused: bool, chosen: Any) -> None:
    model = classifier()
    with watching(model, run_path, facts=chosen):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for number in range(4):
            optimizer.zero_grad()
            inputs, labels = batch(number)
            loss = F.cross_entropy(model(inputs), labels) * (float("inf") if number == 2 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert list(facts_by_step(run_path, "step_skipped")) == ([2] if chosen is None else [])


class Counted(nn.Parameter):
    """A parameter that counts how often its gradient is read."""

    reads = 0

    @property
    def grad(self) -> Tensor | None:  # type: ignore[override]
        Counted.reads += 1
        return None


def test_gradients_that_another_thread_may_be_writing_are_not_read(run_path: Path) -> None:
    others: list[torch.optim.Optimizer] = []

    def other() -> None:
        others.append(torch.optim.SGD([Counted(torch.ones(2))], lr=0.1))
        others[0].zero_grad()

    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        Counted.reads = 0
        for number in range(4):
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        assert Counted.reads == 0
    assert len(facts(run_path, "leftover_gradients")) == 1
