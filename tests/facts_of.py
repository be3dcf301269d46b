"""Training runs whose facts are examined: a model to watch, and what the run then says of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import watchglass
from watchglass import Mode, open_run
from watchglass.capture import Hook
from watchglass.config import FACTS


@contextmanager
def watching(model: nn.Module, run: Path, **settings: Any) -> Iterator[Hook]:
    """Watch a model, every step captured and every kind of fact recorded unless the settings say otherwise."""
    settings = {"save_interval": 1, "strict": True, "facts": tuple(FACTS), **settings}
    with watchglass.watch(model, run=run, **settings) as hook:
        yield hook


def facts(run: Path, kind: str) -> list[dict[str, Any]]:
    """Data of all facts of a kind, in order."""
    return [fact.data for fact in open_run(run).facts(kind)]


def facts_by_step(run: Path, kind: str, mode: Mode = Mode.TRAIN) -> dict[int, dict[str, Any]]:
    """The last fact of a kind by the step of a mode."""
    opened = open_run(run)
    ends = opened.worker().tables.steps.values()
    numbers = {end.global_step: end.mode_step for end in ends if end.mode is mode}
    return {numbers[fact.global_step]: fact.data for fact in opened.facts(kind) if fact.global_step in numbers}


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def batch(number: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + number)
    inputs = torch.randn(16, 6, generator=generator)
    return inputs, inputs[:, :3].argmax(1)
