"""One model trained by hand, by ``Trainer``, by Accelerate and by Lightning: the same records, and their own stop."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest

from preloaded import Preloaded
from watchglass import Mode, Run, open_run

pytestmark = pytest.mark.slow

EPOCHS, BATCHES, ACCUMULATED = 3, 8, 2
STEPS = EPOCHS * BATCHES // ACCUMULATED

MODEL = """
    import os, sys
    os.environ["HF_HUB_OFFLINE"] = "1"
    import {library}
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)

    class Net({base}):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

        def forward(self, inputs, labels=None):
            logits = self.body(inputs)
            return {{"loss": F.cross_entropy(logits, labels), "logits": logits}}
    {methods}
    class Data(Dataset):
        def __init__(self, count):
            generator = torch.Generator().manual_seed(count)
            self.inputs = torch.randn(count, 8, generator=generator)

        def __len__(self):
            return len(self.inputs)

        def __getitem__(self, index):
            return {{"inputs": self.inputs[index], "labels": self.inputs[index, :3].argmax()}}

    def weights(model):
        print("weights", sum(p.double().abs().sum().item() for p in model.parameters()))

    torch.manual_seed(0)
    model, train, held_out = Net(), Data(128), Data(48)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

BY_HAND = """
    def evaluate():
        model.eval()
        with torch.no_grad():
            for batch in DataLoader(held_out, 16):
                model(**batch)
        model.train()

    for epoch in range(3):
        for index, batch in enumerate(DataLoader(train, 16)):
            (model(**batch)["loss"] / 2).backward()
            if index % 2:
                optimizer.step()
                optimizer.zero_grad()
        evaluate()
    weights(model)
"""

TRAINER = """
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, *arguments):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = TrainingArguments(
        output_dir="out", num_train_epochs=3, per_device_train_batch_size=16, per_device_eval_batch_size=16,
        gradient_accumulation_steps=2, max_grad_norm=0.0, lr_scheduler_type="constant", eval_strategy="epoch",
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, logging_steps=4, remove_unused_columns=False,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = InOrder(
        model, arguments, train_dataset=train, eval_dataset=held_out, optimizers=(optimizer, scheduler){callbacks}
    )
    trainer.train()
    print("ended in order at", trainer.state.global_step)
    weights(model)
    {after}
"""

ACCELERATE = """
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    num_epochs, train_loader = 3, DataLoader(train, 16)
    model, optimizer, train_loader = accelerator.prepare(model, optimizer, train_loader)
    for epoch in range(num_epochs):
        for batch in train_loader:
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.log({{"epoch_loss": loss.item()}}, step=epoch)
        model.eval()
        with torch.no_grad():
            for batch in DataLoader(held_out, 16):
                model(**batch)
        model.train()
    weights(model)
"""

METHODS = """
        def training_step(self, batch, index):
            loss = self(**batch)["loss"]
            self.log("seen_loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.log("held_out", self(**batch)["loss"])

        def predict_step(self, batch, index):
            return self(**batch)["logits"]

        def configure_optimizers(self):
            return optimizer
"""

LIGHTNING = """
    import logging, warnings

    warnings.filterwarnings("ignore")
    trainer = {library}.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=2, num_sanity_val_steps=2, log_every_n_steps=4{callbacks}
    )
    trainer.fit(model, DataLoader(train, 16), DataLoader(held_out, 16))
    print("ended in order at", trainer.global_step)
    weights(model)
    {after}
"""


def script(kind: str, *, callbacks: str = "", after: str = "") -> str:
    """The program of one kind of loop."""
    library = {"by hand": "torch", "lightning": "lightning"}.get(kind, kind)
    base, methods = ("lightning.LightningModule", METHODS) if kind == "lightning" else ("nn.Module", "")
    loop = {"by hand": BY_HAND, "transformers": TRAINER, "accelerate": ACCELERATE, "lightning": LIGHTNING}[kind]
    return textwrap.dedent((MODEL + loop).format(
        library=library, base=base, methods=methods, callbacks=callbacks, after=after
    ))  # fmt: skip


def run_script(python: Path | str, folder: Path, text: str, *options: str, watched: bool = True) -> str:
    """What a program prints, under ``watchglass run`` or not."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(text)
    launcher = ["-m", "watchglass", "run", "--run", "run", "--save-interval", "1", *options] if watched else []
    done = subprocess.run(
        [python, *launcher, "train.py"],
        cwd=folder, env={**os.environ, "WATCHGLASS_STRICT": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def line(output: str, start: str) -> str:
    """The line of an output that starts so."""
    return next(each for each in output.splitlines() if each.startswith(start))


@pytest.fixture(scope="module")
def by_hand(preloaded: Preloaded, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of the loop that is written by hand."""
    folder = tmp_path_factory.mktemp("hand")
    run_script(preloaded.importing("torch"), folder, script("by hand"))
    return open_run(folder / "run")


@pytest.mark.parametrize("kind", ["transformers", "accelerate", "lightning"])
def test_each_loop_gives_the_records_of_a_loop_by_hand(
    preloaded: Preloaded, tmp_path: Path, by_hand: Run, kind: str
) -> None:
    python = preloaded.importing(kind)
    bare = run_script(python, tmp_path / "bare", script(kind), watched=False)
    output = run_script(python, tmp_path / "watched", script(kind))
    assert line(output, "weights") == line(bare, "weights")
    run = open_run(tmp_path / "watched" / "run")
    assert run.steps() == by_hand.steps() == list(range(STEPS))
    assert len(run.steps(Mode.EVAL)) == len(by_hand.steps(Mode.EVAL)) == EPOCHS * 3
    tensors = [name for name in by_hand.tensor_names() if "/" in name or name.startswith("body")]
    assert {"gradient/body.0.weight", "update/body.2.bias", "body.1.output"} <= set(tensors)
    assert set(tensors) <= set(run.tensor_names())
    for name in tensors:
        for reduction in ("l2", "min", "max"):
            steps, values = run.tensor(name).reductions(reduction)
            expected_steps, expected = by_hand.tensor(name).reductions(reduction)
            np.testing.assert_array_equal(steps, expected_steps, err_msg=name)
            np.testing.assert_allclose(values, expected, rtol=1e-5, err_msg=name)
    for mode in (Mode.TRAIN, Mode.EVAL):
        np.testing.assert_allclose(run.scalars("loss", mode=mode)[1], by_hand.scalars("loss", mode=mode)[1], rtol=1e-5)
    (planned,) = run.facts("planned_steps")
    assert planned.data["steps"] == STEPS


def test_logged_metrics_are_metrics_of_the_run(preloaded: Preloaded, tmp_path: Path) -> None:
    run_script(preloaded.importing("transformers"), tmp_path / "trainer", script("transformers"))
    names = open_run(tmp_path / "trainer" / "run").tensor_names()
    assert {"logged/loss", "epoch", "eval_loss"} <= set(names)
    run_script(preloaded.importing("lightning"), tmp_path / "lightning", script("lightning"))
    run = open_run(tmp_path / "lightning" / "run")
    assert {"seen_loss", "held_out"} <= set(run.tensor_names())
    run_script(preloaded.importing("accelerate"), tmp_path / "accelerate", script("accelerate"))
    steps, values = open_run(tmp_path / "accelerate" / "run").scalars("epoch_loss")
    assert list(steps) == [STEPS // EPOCHS * epoch - 1 for epoch in (1, 2, 3)]
    assert np.isfinite(values).all()


def test_predictions_are_no_evaluations(preloaded: Preloaded, tmp_path: Path) -> None:
    after = {
        "transformers": "trainer.predict(held_out)",
        "lightning": "trainer.predict(model, DataLoader(held_out, 16))",
    }
    for kind, call in after.items():
        run_script(preloaded.importing(kind), tmp_path / kind, script(kind, after=call))
        run = open_run(tmp_path / kind / "run")
        assert len(run.steps(Mode.PREDICT)) == 3, kind
        assert len(run.steps(Mode.EVAL)) == EPOCHS * 3, kind


def test_an_evaluation_after_a_prediction_that_failed_is_one(preloaded: Preloaded, tmp_path: Path) -> None:
    after = """
    model.predict_step = lambda *batch: 1 / 0
    try:
        trainer.predict(model, DataLoader(held_out, 16))
    except ZeroDivisionError:
        trainer.validate(model, DataLoader(held_out, 16))
    """
    run_script(preloaded.importing("lightning"), tmp_path / "run", script("lightning", after=after))
    run = open_run(tmp_path / "run" / "run")
    assert not run.steps(Mode.PREDICT)
    assert len(run.steps(Mode.EVAL)) == (EPOCHS + 1) * 3


RULE = """
    from watchglass import Finding, Severity
    from watchglass.rules import Needs, Rule

    class AtFour(Rule):
        \"\"\"Finds step 4.\"\"\"

        needs = (Needs("loss"),)

        def check(self, view):
            if view.mode_step == 4:
                yield self.finding(view, severity=Severity.ERROR, message="step 4", value=4.0)
"""


@pytest.mark.parametrize("kind", ["transformers", "lightning"])
def test_a_stop_is_that_of_the_loop(preloaded: Preloaded, tmp_path: Path, kind: str) -> None:
    text = (
        script(kind).replace("num_train_epochs=3", "num_train_epochs=4000").replace("max_epochs=3", "max_epochs=4000")
    )
    folder = tmp_path / kind
    folder.mkdir()
    (folder / "at_four.py").write_text(textwrap.dedent(RULE))
    (folder / "train.py").write_text(text)
    command = [
        preloaded.importing(kind), "-m", "watchglass", "run", "--run", "run", "--rules", "at_four.py:AtFour",
        "--stop-on", "error", "train.py",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert "ended in order at" in done.stdout, done.stderr
    assert "weights" in done.stdout
    run = open_run(folder / "run")
    assert len(run.steps()) == int(line(done.stdout, "ended in order at").split()[-1])
    assert len(run.steps()) < 16_000
    assert run.worker().lifecycle[-1]["status"] == "stopped"


@pytest.mark.parametrize("kind", ["transformers", "lightning"])
def test_a_callback_watches_without_a_launcher(preloaded: Preloaded, tmp_path: Path, by_hand: Run, kind: str) -> None:
    callbacks = f', callbacks=[__import__("watchglass").callback("{kind}", run="run", save_interval=1, strict=True)]'
    run_script(preloaded.importing(kind), tmp_path / kind, script(kind, callbacks=callbacks), watched=False)
    run = open_run(tmp_path / kind / "run")
    assert run.steps() == by_hand.steps()
    name = "gradient/body.0.weight"
    np.testing.assert_allclose(
        run.tensor(name).reductions("l2")[1], by_hand.tensor(name).reductions("l2")[1], rtol=1e-5
    )
    assert run.facts("planned_steps")[0].data["steps"] == STEPS
