"""Several models in one script: each step, each series and each tensor says whose it is."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam

from train_twice import batch
from watchglass import Hook, Mode, Run, open_run
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.capture.pytorch.modules.module_tree import ModuleTree

pytestmark = pytest.mark.own_process

STEPS = 24


def found(path: Path, **settings: Any) -> Hook:
    """A hook that finds models itself, as ``watchglass run`` does."""
    hook = Hook(path, save_interval=settings.pop("save_interval", 1000), strict=True, **settings)
    PyTorchAdapter(hook.port, discover=True)
    return hook


def network(outputs: int = 4, inputs: int = 12) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


def steps_of(run: Run, mode: Mode = Mode.TRAIN) -> list[int]:
    """Numbers of the models of a run's steps, in order."""
    return [end.model for end, _ in run.worker().course if end.mode is mode]


def series(run: Run, name: str, mode: Mode = Mode.TRAIN) -> list[float]:
    return [float(value) for value in run.scalars(name, mode=mode)[1]]


def test_networks_of_a_gan_that_take_turns_have_a_loss_each(tmp_path: Path) -> None:
    torch.manual_seed(0)
    said: dict[str, list[float]] = {"critic": [], "generator": []}
    with found(tmp_path / "run"):
        critic, generator = network(1), network(12, 3)
        of_critic, of_generator = Adam(critic.parameters(), 1e-3), Adam(generator.parameters(), 1e-3)
        one, zero = torch.ones(8, 1), torch.zeros(8, 1)
        for number in range(STEPS):
            noise = torch.randn(8, 3)
            critic.zero_grad()
            real = F.binary_cross_entropy_with_logits(critic(batch(number, 8)[0]), one)
            real.backward()
            made = generator(noise)
            fake = F.binary_cross_entropy_with_logits(critic(made.detach()), zero)
            fake.backward()
            of_critic.step()
            said["critic"].append(math.fsum([real.item(), fake.item()]))
            generator.zero_grad()
            loss = F.binary_cross_entropy_with_logits(critic(made), one)
            loss.backward()
            of_generator.step()
            said["generator"].append(loss.item())
    run = open_run(tmp_path / "run")
    assert steps_of(run) == [0, 1] * STEPS
    assert series(run, "loss") == pytest.approx(said["critic"], rel=1e-6)
    assert series(run, "model_2/loss") == pytest.approx(said["generator"], rel=1e-6)
    assert len(series(run, "gradient_norm")) > 0 < len(series(run, "model_2/gradient_norm"))
    models = {row.name: row.model for row in run.worker().infos().values()}
    assert (models["0.weight"], models["model_2.0.weight"], models["learning_rate/0"]) == (0, 1, None)
    assert (models["loss"], models["model_2/loss"]) == (0, 1)


def test_networks_that_are_updated_together_of_different_losses_have_a_loss_each_in_one_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    said: list[tuple[float, float]] = []
    with found(tmp_path / "run"):
        first, second = network(), network()
        optimizers = SGD(first.parameters(), 0.1), SGD(second.parameters(), 0.1)
        for number in range(STEPS):
            inputs, labels = batch(number, 8)
            losses = F.cross_entropy(first(inputs), labels), F.cross_entropy(second(inputs), labels)
            for optimizer in optimizers:
                optimizer.zero_grad()
            for loss in losses:
                loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            said.append((losses[0].item(), losses[1].item()))
    run = open_run(tmp_path / "run")
    assert steps_of(run) == [0] * STEPS
    assert series(run, "loss") == pytest.approx([first for first, _ in said], rel=1e-6)
    assert series(run, "model_2/loss") == pytest.approx([second for _, second in said], rel=1e-6)


def test_each_of_many_models_that_a_search_keeps_has_its_loss(tmp_path: Path) -> None:
    torch.manual_seed(0)
    kept: list[nn.Module] = []
    said: list[float] = []
    with found(tmp_path / "run"):
        for number in range(30):
            kept.append(network())
            optimizer = SGD(kept[-1].parameters(), 0.1)
            for _ in range(2):
                inputs, labels = batch(number, 8)
                optimizer.zero_grad()
                loss = F.cross_entropy(kept[-1](inputs), labels)
                loss.backward()
                optimizer.step()
                said.append(loss.item())
    run = open_run(tmp_path / "run")
    names = ["loss", *(f"model_{number}/loss" for number in range(2, 31))]
    assert [value for name in names for value in series(run, name)] == pytest.approx(said, rel=1e-6)


@pytest.mark.parametrize("optimizers", [1, 2])
def test_an_encoder_and_a_decoder_are_one_group(tmp_path: Path, optimizers: int) -> None:
    torch.manual_seed(0)
    said: list[float] = []
    evaluated: list[float] = []
    with found(tmp_path / "run"):
        encoder, decoder = network(6), network(4, 6)
        parts = [encoder.parameters(), decoder.parameters()]
        made = [SGD(part, 0.1) for part in parts] if optimizers == 2 else [SGD([*parts[0], *parts[1]], 0.1)]
        for number in range(STEPS):
            inputs, labels = batch(number, 8)
            for optimizer in made:
                optimizer.zero_grad()
            loss = F.cross_entropy(decoder(encoder(inputs)), labels)
            loss.backward()
            for optimizer in made:
                optimizer.step()
            said.append(loss.item())
            if number % 6 == 5:
                with torch.no_grad():
                    evaluated.append(F.cross_entropy(decoder(encoder(inputs)), labels).item())
    run = open_run(tmp_path / "run")
    assert steps_of(run) == [0] * STEPS
    assert series(run, "loss") == pytest.approx(said, rel=1e-6)
    assert series(run, "loss", Mode.EVAL) == pytest.approx(evaluated, rel=1e-6)
    assert "model_2/loss" not in run.tensor_names()
    assert {row.model for row in run.worker().infos().values() if row.name.startswith("model_2.")} == {1}


def test_an_averaged_copy_is_a_model_of_its_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    said: dict[str, list[float]] = {"model": [], "average": []}
    with found(tmp_path / "run"):
        model = network()
        average = copy.deepcopy(model)
        optimizer = SGD(model.parameters(), 0.1)
        for number in range(STEPS):
            inputs, labels = batch(number, 8)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            with torch.no_grad():
                for old, new in zip(average.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 0.1)
            if number % 6 == 5:
                with torch.no_grad():
                    for name, each in (("model", model), ("average", average)):
                        said[name].append(F.cross_entropy(each(inputs), labels).item())
    run = open_run(tmp_path / "run")
    assert steps_of(run, Mode.EVAL) == [0, 1] * (STEPS // 6)
    assert series(run, "loss", Mode.EVAL) == pytest.approx(said["model"], rel=1e-6)
    assert series(run, "model_2/loss", Mode.EVAL) == pytest.approx(said["average"], rel=1e-6)


def test_models_that_are_trained_one_after_another_have_a_series_each(tmp_path: Path) -> None:
    torch.manual_seed(0)
    said: list[list[float]] = []
    with found(tmp_path / "run"):
        for fold in range(3):
            model = network()
            optimizer = SGD(model.parameters(), 0.1 * (fold + 1))
            said.append([])
            for number in range(STEPS):
                inputs, labels = batch(number, 8)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
                said[-1].append(loss.item())
    run = open_run(tmp_path / "run")
    assert steps_of(run) == [fold for fold in range(3) for _ in range(STEPS)]
    assert steps_of(run, Mode.EVAL) == []
    assert [run.global_step(step) for step in run.steps()] == list(range(3 * STEPS))
    for fold, name in enumerate(("loss", "model_2/loss", "model_3/loss")):
        assert series(run, name) == pytest.approx(said[fold], rel=1e-6)


@pytest.mark.parametrize("teacher_first", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_a_teacher_makes_no_evaluations(tmp_path: Path, teacher_first: bool, gradients: bool) -> None:
    torch.manual_seed(0)
    said: list[float] = []
    evaluated: list[float] = []
    with found(tmp_path / "run"):
        teacher, student = network().eval().requires_grad_(False), network()
        optimizer = SGD(student.parameters(), 0.1)

        def taught(inputs: Tensor) -> Tensor:
            with torch.set_grad_enabled(gradients):
                return teacher(inputs).softmax(1)

        for number in range(STEPS):
            inputs, _ = batch(number, 8)
            optimizer.zero_grad()
            target = taught(inputs) if teacher_first else None
            output = student(inputs)
            loss = F.cross_entropy(output, taught(inputs) if target is None else target)
            loss.backward()
            optimizer.step()
            said.append(loss.item())
            if number % 6 == 5:
                with torch.no_grad():
                    evaluated.append(F.cross_entropy(student(inputs), inputs[:, :4].argmax(1)).item())
    run = open_run(tmp_path / "run")
    assert steps_of(run) == [0] * STEPS
    assert steps_of(run, Mode.EVAL) == [0] * len(evaluated)
    assert series(run, "loss") == pytest.approx(said, rel=1e-6)
    assert series(run, "loss", Mode.EVAL) == pytest.approx(evaluated, rel=1e-6)
    assert not [name for name in run.tensor_names() if name.startswith("model_2")]
    assert [run.global_step(step) for step in run.steps()] == [n + n // 6 for n in range(STEPS)]


def test_a_target_network_makes_no_evaluations_and_what_a_script_saves_is_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with found(tmp_path / "run") as hook:
        online = network()
        target = copy.deepcopy(online)
        optimizer = Adam(online.parameters(), 1e-3)
        for number in range(STEPS):
            inputs, labels = batch(number, 8)
            with torch.no_grad():
                wanted = target(inputs + 1).max(1).values
            hook.save_scalar("wanted", number)
            optimizer.zero_grad()
            F.mse_loss(online(inputs).gather(1, labels[:, None])[:, 0], wanted).backward()
            optimizer.step()
            if number % 4 == 3:
                target.load_state_dict(online.state_dict())
    run = open_run(tmp_path / "run")
    assert steps_of(run, Mode.EVAL) == []
    assert steps_of(run) == [0] * STEPS
    assert not [name for name in run.tensor_names() if name.startswith("model_2")]
    assert series(run, "wanted") == list(range(STEPS))


def test_many_forwards_of_another_model_are_an_evaluation_without_a_loss(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with found(tmp_path / "run"):
        model, other = network(), network()
        optimizer = SGD(model.parameters(), 0.1)
        for number in range(STEPS):
            inputs, labels = batch(number, 8)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if number in (2, 20):
                with torch.no_grad():
                    for _ in range(30):
                        other(inputs)
            elif number == 10:
                with torch.no_grad():
                    model(inputs)
    assert steps_of(open_run(tmp_path / "run"), Mode.EVAL) == [1] * 30 + [0] + [1] * 30


def test_each_new_model_is_described_with_its_optimizer(tmp_path: Path) -> None:
    """Also where its first step is not captured: advice names the learning rate of the model that it is about."""
    torch.manual_seed(0)
    rates = (0.1, 0.2, 0.4)
    with found(tmp_path / "run", save_interval=1000):
        for rate in rates:
            model = network()
            optimizer = SGD(model.parameters(), rate)
            for number in range(STEPS):
                inputs, labels = batch(number, 8)
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
    run = open_run(tmp_path / "run")
    described = {fact.model or 0: fact.data["groups"][0]["lr"] for fact in run.facts("optimizer")}
    assert described == dict(enumerate(rates))
    assert [each.type for each in run.models] == ["Sequential"] * 3


def trees() -> int:
    """Number of module trees that are alive."""
    gc.collect()
    return sum(type(each) is ModuleTree for each in gc.get_objects())


def test_a_search_that_builds_many_models_keeps_none_of_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    gone: list[weakref.ref[nn.Module]] = []
    before = trees()
    with found(tmp_path / "run"):
        for trial in range(40):
            model = network()
            gone.append(weakref.ref(model))
            optimizer = SGD(model.parameters(), 0.1)
            for number in range(3 if trial else STEPS):
                inputs, labels = batch(number, 8)
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
        model = optimizer = None  # type: ignore[assignment]
        gc.collect()
        alive = [number for number, reference in enumerate(gone) if reference() is not None]
        assert alive == []
        assert trees() <= before + 2
    run = open_run(tmp_path / "run")
    assert steps_of(run) == [0] * STEPS + [trial for trial in range(1, 40) for _ in range(3)]
    assert steps_of(run, Mode.EVAL) == []
    assert len(series(run, "model_40/loss")) == 3


def test_a_later_model_takes_the_fast_path_as_well(tmp_path: Path) -> None:
    torch.manual_seed(0)
    kept, taken = [], [0, 0]
    said: list[float] = []
    with found(tmp_path / "run") as hook:
        adapter = PyTorchAdapter.of(hook.port)
        assert adapter is not None
        for fold in range(2):
            model = network()
            kept.append(model)
            optimizer = SGD(model.parameters(), 0.1)
            for number in range(60):
                inputs, labels = batch(number, 8)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
                taken[fold] += adapter.fast_path.on
                said += [loss.item()] if fold else []
    run = open_run(tmp_path / "run")
    assert min(taken) > 20
    assert steps_of(run) == [0] * 60 + [1] * 60
    assert series(run, "model_2/loss") == pytest.approx(said, rel=1e-6)


def test_a_later_model_is_captured_as_often_as_the_first(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with found(tmp_path / "run", save_interval=8):
        for _ in range(2):
            model = network()
            optimizer = SGD(model.parameters(), 0.1)
            for number in range(96):
                inputs, labels = batch(number, 8)
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
    run = open_run(tmp_path / "run")
    captured = [run.tensor(name).reductions("count")[0] for name in ("update/0.weight", "update/model_2.0.weight")]
    assert [list(steps) for steps in captured] == [list(range(0, 96, 8)), list(range(96, 192, 8))]


def test_a_teacher_that_has_just_been_evaluated_makes_no_evaluation_in_the_next_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with found(tmp_path / "run"):
        models = network(), network()
        optimizers = [SGD(model.parameters(), 0.1) for model in models]
        inputs, labels = batch(0, 8)
        for number in range(STEPS):
            turn = number // 6 % 2
            with torch.no_grad():
                taught = models[1 - turn](inputs).softmax(1)
            optimizers[turn].zero_grad()
            F.cross_entropy(models[turn](inputs), taught).backward()
            optimizers[turn].step()
            if number % 6 == 5:
                with torch.no_grad():
                    for model in models:
                        F.cross_entropy(model(inputs), labels)
    run = open_run(tmp_path / "run")
    # The first turn's teacher is called first of all, and trained later.
    assert steps_of(run, Mode.EVAL) == [0, 1] * (STEPS // 6)
    assert steps_of(run) == [number // 6 % 2 for number in range(STEPS)]


@pytest.mark.parametrize("losses", [True, False])
def test_a_model_that_is_evaluated_before_it_is_trained_is_the_first(tmp_path: Path, losses: bool) -> None:
    torch.manual_seed(0)
    said: list[float] = []
    with found(tmp_path / "run", save_interval=4, collections=["outputs"], modes={"eval": {"save_interval": 4}}):
        model = network()
        helper = copy.deepcopy(model)
        optimizer = SGD(model.parameters(), 0.1)
        for number in range(6):
            inputs, labels = batch(number, 8)
            if number % 3 == 0:
                with torch.no_grad():
                    for _ in range(3):
                        output = model(inputs)
                        if losses:
                            said.append(F.cross_entropy(output, labels).item())
            with torch.no_grad():
                target = helper(inputs).softmax(1)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), target).backward()
            optimizer.step()
    run = open_run(tmp_path / "run")
    assert steps_of(run) == [0] * 6
    assert steps_of(run, Mode.EVAL) == [0] * 6
    assert not [name for name in run.tensor_names() if name.startswith("model_2")]
    if losses:
        assert series(run, "loss", Mode.EVAL) == pytest.approx(said, rel=1e-6)
        # Of the first call it does not show yet that it is an evaluation: the second is captured in its place.
        assert run.tensor("0.output").steps(Mode.EVAL) == [1, 4]


def test_a_validation_that_asks_a_teacher_first_is_of_the_student(tmp_path: Path) -> None:
    torch.manual_seed(0)
    said: list[float] = []
    with found(tmp_path / "run"):
        teacher, student = network(), network()
        optimizer = SGD(student.parameters(), 0.1)
        for number in range(STEPS):
            inputs, _ = batch(number, 8)
            if number % 6 == 0:
                with torch.no_grad():
                    for _ in range(2):
                        target = teacher(inputs).softmax(1)
                        said.append(F.cross_entropy(student(inputs), target).item())
            with torch.no_grad():
                target = teacher(inputs).softmax(1)
            optimizer.zero_grad()
            F.cross_entropy(student(inputs), target).backward()
            optimizer.step()
    run = open_run(tmp_path / "run")
    assert steps_of(run) == [0] * STEPS
    assert series(run, "loss", Mode.EVAL) == pytest.approx(said, rel=1e-6)


def test_a_target_network_and_its_predictor_leave_the_first_number_to_what_is_trained(tmp_path: Path) -> None:
    """Twin networks that teach each other, and the actor and critic of TD3, each with copies that are asked first."""
    torch.manual_seed(0)
    said: dict[str, list[float]] = {"critic": [], "actor": []}
    with found(tmp_path / "run", save_interval=1):
        actor, critic = network(3), network(1, 15)
        copies = copy.deepcopy(actor), copy.deepcopy(critic)
        of_actor, of_critic = Adam(actor.parameters(), 1e-3), Adam(critic.parameters(), 1e-3)
        for number in range(STEPS):
            inputs, labels = batch(number, 8)
            with torch.no_grad():
                wanted = labels[:, None] + copies[1](torch.cat([inputs, copies[0](inputs)], 1))
            loss = F.mse_loss(critic(torch.cat([inputs, inputs[:, :3]], 1)), wanted)
            of_critic.zero_grad()
            loss.backward()
            of_critic.step()
            said["critic"].append(loss.item())
            if number % 2:
                loss = -critic(torch.cat([inputs, actor(inputs)], 1)).mean()
                of_actor.zero_grad()
                loss.backward()
                of_actor.step()
                said["actor"].append(loss.item())
    run = open_run(tmp_path / "run")
    assert steps_of(run) == [0, 0, 1] * (STEPS // 2)
    assert steps_of(run, Mode.EVAL) == []
    assert series(run, "loss") == pytest.approx(said["critic"], rel=1e-6)
    assert series(run, "model_2/loss") == pytest.approx(said["actor"], rel=1e-6)
    assert {"0.weight", "model_2.0.weight"} <= set(run.tensor_names())
    assert not [name for name in run.tensor_names() if name.startswith("model_3")]
