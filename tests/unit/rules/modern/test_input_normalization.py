"""InputNormalization: inputs on a scale that weights cannot handle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from real_runs import RealRuns, Watch, batch, classifier, update
from synthetic_steps import training
from watchglass.capture.facts.input_sketches import QUANTILES
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import capture_for, find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

RULE = "InputNormalization"


def sketched(values: Any, into: Sequence[str] = ("linear",)) -> list[Step]:
    values = np.asarray(values, float)
    data = {
        "into": list(into), "shape": list(values.shape), "sampled": values.size,
        "mean": values.mean(), "std": values.std(),
        "quantiles": np.quantile(values, QUANTILES).tolist(),
        "channels": {"axis": 1, "mean": values.mean(0).tolist(), "std": values.std(0).tolist()},
    }  # fmt: skip
    return training(4, facts={step: {"input_sketch": data} for step in (0, 1)})


def grey(most: int, seed: int = 0) -> Any:
    """Images of 8 by 8 pixels in 0..1, in whole numbers of levels, with black and white ones."""
    drawn = np.random.default_rng(seed).beta(0.4, 0.8, (64, 64))
    return np.round(drawn * most) / most


def normalized(values: Any, times: int, mean: Any = None, std: Any = None) -> Any:
    mean, std = values.mean(0) if mean is None else mean, values.std(0) if std is None else std
    for _ in range(times):
        values = (values - mean) / std
    return values


def table() -> Any:
    """Positive features in units of their own."""
    return np.random.default_rng(0).gamma(9, 1, (64, 6)) * np.array([0.1, 1, 2, 0.5, 0.3, 1.5])


TWICE = {
    "divided by 16": lambda times: grey(16) / 16 ** (times - 1),
    "mean and spread of 0.5": lambda times: normalized(grey(255), times, 0.5, 0.5),
    "those of MNIST": lambda times: normalized(grey(255), times, 0.1307, 0.3081),
    "own mean and spread": lambda times: normalized(grey(255), times, grey(255).mean(), grey(255).std()),
    "own mean and spread, of whole numbers up to 16": lambda times: normalized(
        16 * grey(16), times, (16 * grey(16)).mean(), (16 * grey(16)).std()
    ),
    "divided by 255 and then normalised": lambda times: (grey(255) / 255 ** (times - 1) - 0.1307) / 0.3081,
    "by feature": lambda times: normalized(table(), times),
    "by feature, far from zero": lambda times: normalized(50 * np.array([0.1, 1, 2, 0.5, 0.3, 1.5]) + table(), times),
}


@pytest.mark.parametrize("name", TWICE)
def test_inputs_that_were_normalised_twice_are_known_by_their_values(run_path: Path, name: str) -> None:
    found = []
    for times in (1, 2):
        run = build_run(run_path / str(times), sketched(TWICE[name](times)))
        found.append([(f.causes[0], f.severity.value) for f in replay(run, [RuleSpec(RULE)]).findings])
    # Features that are logarithms have negative means too.
    severity = "info" if name == "by feature" else "warning"
    assert found == [[], [("inputs_normalized_twice", severity)]]


def test_sorted_samples_are_no_inputs_that_hardly_vary(run_path: Path) -> None:
    random, steps = np.random.default_rng(0), []
    for place in range(8):
        steps += sketched(5 + 0.2 * place + 0.01 * random.normal(size=(64, 2)))[:1]
    assert replay(build_run(run_path, steps), [RuleSpec(RULE)]).findings == ()


def test_other_data_whose_minimum_is_that_of_pixels_by_chance_are_not_reported(run_path: Path) -> None:
    """Of many batches of a series one has nearly such a minimum; pixels have the same one in each batch."""
    black, steps = (0 - 0.2860) / 0.3530, []
    for number, least in enumerate((-2.9, (black - 0.2860) / 0.3530, -3.3, -3.0)):
        series = np.clip(np.random.default_rng(number).normal(size=(64, 64)), -2.5, 3.0)
        series[0, 0] = least
        steps += sketched(series, into=("recurrent",))[:1]
    assert replay(build_run(run_path, steps), [RuleSpec(RULE)]).findings == ()


@pytest.mark.parametrize(("shape", "found"), [((4,), 0), ((1, 8), 0), ((8, 2), 1), ((1, 64), 1)])
def test_the_first_state_of_an_episode_may_be_near_zero(run_path: Path, shape: tuple[int, ...], found: int) -> None:
    values = np.random.default_rng(0).uniform(-0.009, 0.009, shape)
    steps = sketched(values.reshape(shape[0], -1))
    for step in steps:
        for fact in step.facts.values():
            fact["shape"] = list(shape)
            fact.pop("channels", None)  # it has none of a single sample
    assert len(replay(build_run(run_path, steps), [RuleSpec(RULE)]).findings) == found


def normal(*scales: float) -> Any:
    return np.random.default_rng(0).normal(size=(64, len(scales))) * np.array(scales)


class TestInputNormalization(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return sketched(np.random.default_rng(0).integers(0, 256, (64, 8)), into=("other", "convolution"))

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (
            sketched(normal(0.05, 1, 20)),
            sketched(2000 / 255 + normal(0.1, 0.1)),
            sketched(np.random.default_rng(0).random((64, 8)) / 255),
            sketched(-0.996 + normal(0.002, 0.002)),
        )

    def healthy(self) -> Sequence[Step]:
        return sketched(normal(1, 2, 0.5))


class TestInputNormalizationInRealRuns(RealRuns):
    rule = "InputNormalization"
    cause = "inputs_not_normalized"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        watch(model)
        for _ in range(20):
            inputs, labels = batch()
            update(model, optimizer, (60 if sick else 1) * inputs, labels)


class Divides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.layer(images.float() / 255)
        return found


def images(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape).float()


def causes_in(run: Path, model: nn.Module, inputs: Tensor) -> list[str]:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    labels = torch.zeros(len(inputs), dtype=torch.long)
    with watchglass.watch(model, run=run, strict=True, **{**capture_for([RuleSpec(RULE)]), "save_interval": 1}):
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return [finding.causes[0] for finding in replay(str(run), [RuleSpec(RULE)]).findings]


Make = Callable[[], nn.Sequential]
CONV: Make = lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 4))  # noqa: E731
FLAT: Make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4))  # noqa: E731


@pytest.mark.parametrize(
    ("model", "inputs", "found"),
    [
        (CONV, lambda: images(16, 3, 8, 8), ["inputs_not_normalized"]),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4)),
            lambda: images(16, 3, 8, 8),
            ["inputs_not_normalized"],
        ),
        (CONV, lambda: images(16, 3, 8, 8) / 255**2, ["inputs_normalized_twice"]),
        (CONV, lambda: (images(16, 3, 8, 8) / 255**2 - 0.5) / 0.5, ["inputs_normalized_twice"]),
        (CONV, lambda: images(16, 3, 8, 8) / 255, []),
        (CONV, lambda: (images(16, 3, 8, 8) / 255 - 0.45) / 0.22, []),
        # Digits of 0..16, one-hot and sparse features, a constant feature.
        (lambda: nn.Linear(64, 4), lambda: torch.randint(0, 17, (32, 64)).float(), []),
        (lambda: nn.Linear(64, 4), lambda: F.one_hot(torch.randint(0, 64, (32,)), 64).float(), []),
        (lambda: nn.Linear(3, 4), lambda: torch.cat([torch.randn(32, 2), torch.ones(32, 1)], 1), []),
        # The model normalises, divides or embeds first.
        (lambda: nn.Sequential(nn.BatchNorm2d(3), *CONV()), lambda: images(16, 3, 8, 8), []),
        (lambda: nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 4)), lambda: images(16, 16), []),
        (Divides, lambda: images(16, 16), []),
        (Divides, lambda: images(16, 16).to(torch.uint8), []),
        (
            lambda: nn.Sequential(nn.Embedding(5000, 4), nn.Flatten(), nn.Linear(16, 4)),
            lambda: torch.randint(0, 5000, (16, 4)),
            [],
        ),
    ],
)
def test_what_counts_is_what_the_first_weights_get(
    run_path: Path, model: Callable[[], nn.Module], inputs: Callable[[], Tensor], found: list[str]
) -> None:
    torch.manual_seed(0)
    assert causes_in(run_path, model(), inputs()) == found
