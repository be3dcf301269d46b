"""An update that takes most of each step, and the noise of the gradient, are one verdict on the batch size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from clocks import Now
from timed_layers import Takes
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.config import RuleSpec
from watchglass.diagnose import verdict
from watchglass.evaluate import replay
from watchglass.records import Diagnosis, Severity
from watchglass.rules import capture_for

pytestmark = pytest.mark.slow

RULES = [RuleSpec("UpdateBound"), RuleSpec("GradientNoise")]
WORDS, CLASSES = 20_000, 4
#: What a sample takes in the forward, and half of what it takes in the backward; and what an update takes.
SAMPLE_S, UPDATE_S = 0.0001, 0.01


def texts(samples: int, *, wrong: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Words of a class each, and the classes of the texts, a share of which is wrong."""
    classes = torch.randint(0, CLASSES, (samples,))
    words = CLASSES * torch.randint(0, WORDS // CLASSES // 50, (samples, 8)) + classes[:, None]
    return words, torch.where(torch.rand(samples) < wrong, torch.randint(0, CLASSES, (samples,)), classes)


def judged(run: Path, samples: int, *, wrong: float, steps: int = 240) -> list[Diagnosis]:
    """The diagnoses of a classifier of texts, whose vocabulary Adam updates as a whole."""
    torch.manual_seed(0)
    clock = Now()
    layers = [nn.EmbeddingBag(WORDS, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, CLASSES)]
    model = nn.Sequential(*layers, Takes(clock, SAMPLE_S * samples))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    optimizer.register_step_pre_hook(lambda *_: clock.advance(UPDATE_S))
    with Hook(run, strict=True, profiler=True, **{**capture_for(RULES), "save_interval": 4}) as hook:
        hook.port.phase_clock = clock.monotonic_ns
        PyTorchAdapter(hook.port, discover=True)
        for _ in range(steps):
            words, classes = texts(samples, wrong=wrong)
            optimizer.zero_grad()
            F.cross_entropy(model(words), classes).backward()
            optimizer.step()
    found = verdict(watchglass.open_run(run), replay(str(run), RULES)).diagnoses
    return [diagnosis for diagnosis in found if diagnosis.severity is not Severity.INFO]


def test_a_tiny_batch_with_a_noisy_gradient_is_one_verdict(tmp_path: Path) -> None:
    (diagnosis,) = judged(tmp_path / "run", 8, wrong=0.7)
    assert diagnosis.causes[0].cause.id == "batch_small_for_machine"
    assert "the update of the weights takes" in diagnosis.headline
    assert "of an update on 8 samples is mostly noise: its noise scale is" in diagnosis.headline
    assert len(diagnosis.findings) == 2
    assert diagnosis.what_to_try[0].startswith("Raise the batch of 8 samples towards ")


def test_a_batch_that_is_not_tiny_gets_none(tmp_path: Path) -> None:
    assert judged(tmp_path / "run", 256, wrong=0.5, steps=60) == []
