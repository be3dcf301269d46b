"""What the loops around PyTorch add to a step: ``Trainer`` and Lightning call a listener of ours at their events.

    python benchmarks/loops.py                 trainings of 400 steps, 15 of each kind
    python benchmarks/loops.py --blocks 1 --steps 20

Trainings with one listener and with 21 of them take turns; the figure is a twentieth of the median difference per step,
in processor time of the training thread. Accelerate has no events: nothing of ours runs in its steps.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import lightning
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from watchglass import Hook
from watchglass.capture import attach, loop
from watchglass.capture.lightning import callbacks_of
from watchglass.capture.transformers import TrainListener

_BATCH = 8
#: Listeners that are added.
_COPIES = 20
#: Makes so many of a class.
Listeners = Callable[[Callable[..., Any]], list[Any]]


class Net(lightning.LightningModule):
    """A perceptron for all loops."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Loss and logits."""
        logits = self.body(inputs)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        """The loss of a batch."""
        loss: torch.Tensor = self(*batch)["loss"]
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain descent."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def data(steps: int) -> TensorDataset:
    """Batches of one epoch."""
    inputs = torch.randn(steps * _BATCH, 8)
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def with_trainer(model: Net, samples: TensorDataset, folder: str, listeners: Listeners) -> None:
    """A training by Hugging Face's ``Trainer``."""
    settings = transformers.TrainingArguments(
        output_dir=folder, per_device_train_batch_size=_BATCH, num_train_epochs=1, save_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=True, logging_strategy="no", remove_unused_columns=False, max_grad_norm=0.0,
    )  # fmt: skip
    rows = [{"inputs": inputs, "labels": label} for inputs, label in (samples[index] for index in range(len(samples)))]
    trainer = transformers.Trainer(model, settings, train_dataset=rows)
    trainer.callback_handler.callbacks += listeners(TrainListener)
    trainer.train()


def with_lightning(model: Net, samples: TensorDataset, folder: str, listeners: Listeners) -> None:
    """A training by Lightning."""
    trainer: Any = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.callbacks += listeners(callbacks_of("lightning.pytorch")[0])
    trainer.fit(model, DataLoader(samples, _BATCH))


LOOPS = {"transformers": with_trainer, "lightning": with_lightning}


def step_us(kind: str, steps: int, count: int) -> float:
    """Microseconds of processor time per step of one training with so many listeners."""
    model, samples = Net(), data(steps)
    with tempfile.TemporaryDirectory() as folder, Hook(Path(folder) / "run") as hook:
        attach(hook.port, loop("torch"), model)
        begun = time.thread_time()
        LOOPS[kind](model, samples, folder, lambda made: [made(hook.port) for _ in range(count)])
        return (time.thread_time() - begun) / steps * 1e6


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="steps of a training")
    parser.add_argument("--blocks", type=int, default=15, help="trainings of each kind")
    parser.add_argument("--only", choices=LOOPS, help="one loop")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    for kind in [options.only] if options.only else LOOPS:
        step_us(kind, options.steps, 1)  # imports and caches
        more, alone = [], []
        for block in range(options.blocks):
            order = (1, 1 + _COPIES) if block % 2 else (1 + _COPIES, 1)
            found = {count: step_us(kind, options.steps, count) for count in order}
            alone.append(found[1])
            more.append((found[1 + _COPIES] - found[1]) / _COPIES)
        spread = sorted(more)
        low, high = spread[len(spread) // 4], spread[-1 - len(spread) // 4]
        step, middle = statistics.median(alone), statistics.median(more)
        print(f"{kind:13} {step:7.0f} µs a step, of these {middle:.1f} µs for our listener ({low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
