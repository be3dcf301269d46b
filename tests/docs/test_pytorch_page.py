"""docs/pytorch.md names every function that watching wraps."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import torch
from torch import nn

from leaks import TORCH_PATCHABLE
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.capture.pytorch.switchboard import LOSS_FUNCTIONS

TEXT = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text(encoding="utf-8")


def functions() -> dict[str, object]:
    """What may be wrapped, by the name that a script knows it by."""
    found: dict[str, object] = {"torch.compile": torch.compile}
    for module, name in TORCH_PATCHABLE:
        owner = importlib.import_module(module)
        owner = getattr(owner, name) if name else owner
        place = f"{module}.{name}" if name else module
        found |= {f"{place}.{key}": value for key, value in vars(owner).items() if callable(value)}
    return found


def test_what_is_wrapped_is_what_the_page_says(tmp_path: Path) -> None:
    inside: list[dict[str, object]] = []

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.append(functions())
            return self.attend(x, x, x)[0]  # type: ignore[no-any-return]

    before = functions()
    with Hook(tmp_path / "run", facts=(), save_interval=1, collections=("attention",)) as hook:
        PyTorchAdapter(hook, discover=True)
        model = Attending()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            model(torch.ones(2, 3, 4)).sum().backward()
            optimizer.step()
    wrapped = {name for seen in inside for name, value in seen.items() if before.get(name) is not value}
    losses = {f"torch.nn.functional.{name}" for name in LOSS_FUNCTIONS}
    named = set(re.findall(r"`(torch(?:\.\w+)+)`", TEXT.split("Nothing of it changes a number")[0]))
    assert wrapped - losses == named - {"torch.nn.functional"}
    assert losses <= wrapped
    assert functions() == before
