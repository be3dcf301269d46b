"""A plain Lightning training: it knows nothing of watchglass, and steps through closures."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from preloaded import Preloaded
from watchglass import Mode, open_run

pytestmark = pytest.mark.slow

SCRIPT = """
    import lightning as L
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Classifier(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
            self.criterion = nn.CrossEntropyLoss()

        def training_step(self, batch, index):
            return self.criterion(self.body(batch[0]), batch[1])

        def validation_step(self, batch, index):
            self.criterion(self.body(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    L.seed_everything(0, verbose=False)
    inputs = torch.randn(96, 8)
    data = TensorDataset(inputs, inputs[:, :3].argmax(1))
    trainer = L.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0, %s
    )
    model = Classifier()
    trainer.fit(model, DataLoader(data, 16, shuffle=True), DataLoader(data, 32))
    print("sum of weights", sum(p.double().abs().sum().item() for p in model.parameters()))
"""


def fit(python: Path, tmp_path: Path, extra: str, *, watched: bool) -> str:
    (tmp_path / "fit.py").write_text(textwrap.dedent(SCRIPT % extra))
    launcher = ["-m", "watchglass", "run", "--run", "run", "--save-interval", "1"] if watched else []
    done = subprocess.run(
        [python, *launcher, "fit.py"],
        cwd=tmp_path, env={**os.environ, "WATCHGLASS_STRICT": "1"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("sum of weights"))


@pytest.mark.parametrize(
    ("extra", "steps"), [("", 18), ("accumulate_grad_batches=3", 6), ('precision="bf16-mixed"', 18)]
)
def test_lightning_is_captured_and_not_changed(preloaded: Preloaded, tmp_path: Path, extra: str, steps: int) -> None:
    python = preloaded.importing("lightning")
    assert fit(python, tmp_path, extra, watched=True) == fit(python, tmp_path, extra, watched=False)
    run = open_run(tmp_path / "run")
    assert run.steps(Mode.TRAIN) == list(range(steps))
    # Three per epoch; the sanity check is not recorded.
    assert len(run.steps(Mode.EVAL)) == 3 * 3
    assert {"gradient/body.0.weight", "body.0.weight", "update/body.2.bias"} <= set(run.tensor_names())
    captured, norms = run.tensor("gradient/body.0.weight").reductions("l2")
    assert list(captured) == list(range(steps))
    assert len(set(norms)) == steps, "no captured gradient equals the step before's"
    assert len(run.scalars("loss")[0]) == steps
