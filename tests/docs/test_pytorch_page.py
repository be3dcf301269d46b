"""docs/pytorch.md names every function that watching wraps, and its example prints what it says."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from leaks import TORCH_PATCHABLE
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.capture.pytorch.first_use import attach_at_first_use
from watchglass.capture.pytorch.profiling.device_copies import CopyMethod
from watchglass.capture.pytorch.public_calls import LOSS_FUNCTIONS

TEXT = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text(encoding="utf-8")


def functions() -> dict[str, object]:
    """What may be wrapped, by the name that a script knows it by."""
    found: dict[str, object] = {f"torch.{key}": getattr(torch, key) for key in ("compile", "softmax", "save")}
    found["torch.cuda.synchronize"] = torch.cuda.synchronize
    found |= {f"torch.jit.{key}": value for key, value in vars(torch.jit).items() if callable(value)}
    for module, name in TORCH_PATCHABLE:
        owner = importlib.import_module(module)
        owner = getattr(owner, name) if name else owner
        place = f"{module}.{name}" if name else module
        wrapped = {key: value for key, value in vars(owner).items() if callable(value) or isinstance(value, CopyMethod)}
        found |= {f"{place}.{key}": value for key, value in wrapped.items()}
    return found


def test_what_is_wrapped_is_what_the_page_says(tmp_path: Path) -> None:
    inside: list[dict[str, object]] = []

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(4, 1)
            self.on_device = nn.Parameter(torch.empty(1, device="meta"), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.append(functions())
            return self.attend(x, x, x)[0]  # type: ignore[no-any-return]

    before = functions()
    settings = {
        "facts": ("tensor_reads",),
        "save_interval": 1,
        "collections": ("attention",),
        "profiler": {"enabled": True, "profile_steps": "1:2", "python_profile": "2:3"},
    }
    with Hook(tmp_path / "run", **settings) as hook:
        PyTorchAdapter(hook.port, discover=True)
        model = Attending()
        optimizer = torch.optim.SGD(model.attend.parameters(), 0.1)
        for _ in range(3):
            model(torch.ones(2, 3, 4)).sum().backward()
            optimizer.step()
    with Hook(tmp_path / "after an import in a thread") as hook:
        attach_at_first_use(hook.port)
        inside.append(functions())
    wrapped = {name for seen in inside for name, value in seen.items() if before.get(name) is not value}
    losses = {f"torch.nn.functional.{name}" for name in LOSS_FUNCTIONS}
    named = set(re.findall(r"`(torch(?:\.\w+)+)`", TEXT.split("watchglass changes no number")[0]))
    assert wrapped - losses == named - {"torch.nn.functional"}
    assert losses <= wrapped
    assert functions() == before


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_python")
def test_the_example_prints_what_the_page_says(tmp_path: Path, compiler_cache: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (printed,) = re.findall(r"print\(.*\)  # (.*)", example)
    # A separate process, since the compiler leaves much behind.
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(compiler_cache)}
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{printed}\n"
