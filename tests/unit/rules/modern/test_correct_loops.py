"""Loops that are correct and come close to a fault of inputs, batches or losses: no modern rule fires."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import watchglass
from real_runs import Watch, batch, classifier, evaluate, update
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import capture_for

RULES = [
    RuleSpec(name)
    for name in (
        "LossShape", "OutputActivationMismatch", "RepeatedBatch", "InputNormalization", "WorkerSeedRepeats",
    )
]  # fmt: skip


def data(samples: int = 128) -> TensorDataset:
    return TensorDataset(*batch(samples))


def adversarial(watch: Watch) -> None:
    """A GAN: the discriminator judges real and made samples, and is frozen for the generator's turn."""
    generator = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
    judge = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
    first = torch.optim.Adam(generator.parameters(), 1e-3)
    second = torch.optim.Adam(judge.parameters(), 1e-3)
    watch(judge)
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
    for _ in range(2):
        for real, _ in DataLoader(data(), batch_size=16):
            made = generator(torch.randn(16, 8))
            second.zero_grad()
            loss = F.binary_cross_entropy(judge(real.tanh()), ones) + F.binary_cross_entropy(
                judge(made.detach()), zeros
            )
            loss.backward()
            second.step()
            first.zero_grad()
            F.binary_cross_entropy(judge(made), ones).backward()
            first.step()


def accumulation(watch: Watch) -> None:
    """Micro-batches, with an evaluation before the first step and after each epoch."""
    model, held = classifier(), batch(64)
    watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(4):
        evaluate(model, *held)
        for number, (inputs, labels) in enumerate(DataLoader(data(), batch_size=8)):
            (F.cross_entropy(model(inputs), labels) / 4).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()


def folds(watch: Watch) -> None:
    """A cross-validation: a new model, optimizer and loaders for each fold, of the same samples."""
    samples = data(96)
    for fold in range(3):
        model = classifier()
        if not fold:
            watch(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        training = [index for index in range(96) if index % 3 != fold]
        for _ in range(3):
            for inputs, labels in DataLoader(Subset(samples, training), batch_size=16):
                update(model, optimizer, inputs, labels)


def sharpness(watch: Watch) -> None:
    """Two forwards and backwards for each update, with the same batch."""
    model = classifier()
    watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, labels in DataLoader(data(256), batch_size=16):
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def distillation(watch: Watch) -> None:
    """A teacher's soft targets at a temperature, beside the labels."""
    teacher, student = classifier().eval(), classifier()
    watch(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    for inputs, labels in DataLoader(data(256), batch_size=16):
        with torch.no_grad():
            soft = (teacher(inputs) / 2).softmax(1)
        output = student(inputs)
        loss = F.kl_div((output / 2).log_softmax(1), soft, reduction="batchmean") + F.cross_entropy(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def fine_tuning(watch: Watch) -> None:
    """A frozen backbone whose batch norm stays in evaluation mode, on raw pixels that it normalises."""
    backbone = nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 16), nn.ReLU()).eval().requires_grad_(False)
    backbone[0].running_mean.fill_(127.0)
    backbone[0].running_var.fill_(5000.0)
    model = nn.Sequential(backbone, nn.Linear(16, 4))
    watch(model)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.05)
    for inputs, labels in DataLoader(data(256), batch_size=16):
        update(model, optimizer, inputs * 70 + 127, labels)


def replays(watch: Watch) -> None:
    """Several passes over each batch of experience, in minibatches drawn again for each pass."""
    policy = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))
    watch(policy)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    for _ in range(3):
        states = torch.randn(64, 16)
        returns = states[:, 0]
        for _ in range(4):
            for chosen in torch.randperm(64).split(16):
                optimizer.zero_grad()
                F.mse_loss(policy(states[chosen]).squeeze(-1), returns[chosen]).backward()
                optimizer.step()


LOOPS = (adversarial, accumulation, folds, sharpness, distillation, fine_tuning, replays)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_no_modern_rule_fires(run_path: Path, loop: Callable[[Watch], None]) -> None:
    torch.manual_seed(0)
    settings = {**capture_for(RULES), "save_interval": 1}
    with ExitStack() as hooks:
        loop(lambda model: hooks.enter_context(watchglass.watch(model, run=run_path, strict=True, **settings)))
    found = [each for each in replay(str(run_path), RULES).findings if each.severity is not Severity.INFO]
    assert [each.message for each in found] == []
    assert watchglass.open_run(run_path).facts("batch")
