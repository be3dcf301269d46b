"""Every kind of fact by itself in a training run that has something to say for each: there when on, absent when off."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import watchglass
from watchglass import Run, open_run
from watchglass.config import FACTS

#: Kinds of facts that a run of one process has, without a GPU or a profiler, and whose model embeds no tokens.
KINDS = FACTS.keys() - {"rank_gradients", "token_targets", "allocator", "tensor_reads", "rows_seen_in_training"}
#: What is switched like them and is a scalar alone.
SCALARS = {"rows_seen_in_training"}
#: Scalars that come with facts.
BESIDE = {"clip": "gradient_norm_before_clip", "loss_scale": "loss_scale"} | {name: name for name in SCALARS}


def trained(path: Path | None, **settings: object) -> dict[str, Tensor]:
    """The weights after a loader, a scaler that leaves an update out, clipping, a scheduler and a checkpoint."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    if path is not None:
        with watchglass.watch(model, run=path, strict=True, save_interval=1, **settings):
            _train(model)
    else:
        _train(model)
    return {name: value.clone() for name, value in model.state_dict().items()}


def _train(model: nn.Module) -> None:
    data = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(data, data[:, :3].argmax(1)), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
    forgotten = nn.Linear(3, 3)  # no optimizer holds it
    for epoch in range(2):
        for number, (inputs, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = scaler.scale(F.cross_entropy(forgotten(model(inputs)), labels))
            (loss * float("inf") if (epoch, number) == (1, 2) else loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            F.cross_entropy(model(data), data[:, :3].argmax(1))
        model.train()
    torch.save(model.state_dict(), io.BytesIO())


def kinds(run: Run) -> set[str]:
    """Kinds of facts that can be switched and are there."""
    assert not run.facts("capture_fault")
    assert len(run.steps()) == 8
    return {fact.kind for fact in run.facts()} & FACTS.keys()


@pytest.mark.parametrize("kind", sorted(KINDS | SCALARS))
def test_a_fact_that_is_on_alone_is_there_alone(tmp_path: Path, kind: str) -> None:
    trained(tmp_path / "run", facts=(kind,))
    run = open_run(tmp_path / "run")
    assert kinds(run) == {kind} - SCALARS
    assert set(BESIDE.values()) & set(run.tensor_names()) == ({BESIDE[kind]} if kind in BESIDE else set())


@pytest.mark.parametrize("kind", sorted(KINDS | SCALARS))
def test_a_fact_that_is_off_is_absent_and_the_others_are_there(tmp_path: Path, kind: str) -> None:
    trained(tmp_path / "run", facts=tuple(name for name in FACTS if name != kind))
    run = open_run(tmp_path / "run")
    assert kinds(run) == KINDS - {kind}
    missing = {BESIDE[kind]} if kind in BESIDE else set()
    assert set(BESIDE.values()) - set(run.tensor_names()) == missing


def test_without_a_choice_those_are_there_that_the_report_or_the_default_rules_need(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    assert kinds(open_run(tmp_path / "run")) == {name for name in KINDS if FACTS[name].NEEDED_BY}


@pytest.mark.parametrize("facts", [(), None, *((kind,) for kind in FACTS)])
def test_no_choice_changes_the_training(tmp_path: Path, facts: tuple[str, ...] | None) -> None:
    plain, watched = trained(None), trained(tmp_path / "run", facts=facts)
    assert all(torch.equal(value, watched[name]) for name, value in plain.items())
    if facts == ():
        assert kinds(open_run(tmp_path / "run")) == set()
