"""Steps of many forwards, as in reinforcement learning, cost nothing for each forward that is not captured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.record import CapturedRecords

FORWARDS, EVERY = 100, 4


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many records were made since the last call."""
    found: list[None] = []
    make = CapturedRecords.__init__

    def counted(self: CapturedRecords, *args: object, **kwargs: object) -> None:
        found.append(None)
        make(self, *args, **kwargs)  # type: ignore[arg-type]

    def taken() -> int:
        number = len(found)
        found.clear()
        return number

    monkeypatch.setattr(CapturedRecords, "__init__", counted)
    return taken


def test_no_records_are_made_for_forwards_that_no_due_step_captures(tmp_path: Path, made: Callable[[], int]) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    numbers = []
    with Hook(run=tmp_path / "run", save_interval=EVERY, strict=True) as hook:
        PyTorchAdapter(hook.port, discover=False).attach(model)
        for _ in range(3 * EVERY):
            made()
            optimizer.zero_grad()
            outputs = [model(torch.randn(2, 4)) for _ in range(FORWARDS)]
            torch.stack(outputs).pow(2).mean().backward()
            optimizer.step()
            numbers.append(made())
    assert min(numbers[::EVERY]) > FORWARDS / 2, "captured forwards have records of their own"
    assert max(number for step, number in enumerate(numbers) if step % EVERY) < 10
