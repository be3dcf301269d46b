"""Labels, predictions and the log-sum-exp of logits, as losses are given them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from captured_parts import Stage
from devices.fake_device import DEVICE, FakeDevice, move
from watchglass import Mode, open_run
from watchglass.capture.pytorch.public_calls import LOSS_FUNCTIONS
from watchglass.capture.pytorch.tensors.loss_arguments import LossArguments, logsumexp
from watchglass.records import Role

BOTH = {"collections": ["labels", "predictions"]}


def given(function: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that a loss function takes."""
    rows, classes = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    half, signs = torch.rand(4, 3), torch.tensor([1.0, -1.0, 1.0, -1.0])
    special: dict[str, tuple[Any, ...]] = {
        "cross_entropy": (rows, classes),
        "nll_loss": (rows.log_softmax(1), classes),
        "multi_margin_loss": (rows, classes),
        "multilabel_margin_loss": (rows, torch.tensor([[0, -1, -1]] * 4)),
        "binary_cross_entropy": (half, half.round()),
        "gaussian_nll_loss": (rows, rows + 1, half),
        "margin_ranking_loss": (rows[:, 0], rows[:, 1], signs),
        "cosine_embedding_loss": (rows, rows + 1, signs),
        "triplet_margin_loss": (rows, rows + 1, rows - 1),
        "kl_div": (rows.log_softmax(1), half, None, None, "batchmean"),
        "ctc_loss": (torch.randn(6, 2, 4).log_softmax(2), torch.tensor([[1, 2], [3, 1]]), (6, 6), (2, 2)),
    }
    return special.get(function, (rows, half.round())), {}


@pytest.fixture
def stage(run_path: Path) -> Any:
    opened: list[Stage] = []

    def make(**settings: Any) -> Stage:
        opened.append(Stage(run_path, [LossArguments], nn.Identity(), **settings))
        return opened[-1]

    yield make
    for each in opened:
        each.__exit__()


@pytest.mark.parametrize("function", LOSS_FUNCTIONS)
def test_every_loss_shows_its_target_and_all_that_it_judges(function: str, stage: Any) -> None:
    watched = stage(**BOTH)
    arguments, _ = given(function)
    watched.call(nn.Identity(), arguments[0])
    call = getattr(F, function)
    watched.loss(call, *arguments)
    names = list(inspect.signature(call).parameters)
    bound = dict(zip(names, arguments, strict=False))
    expected = {
        "gaussian_nll_loss": {"prediction.input": "input", "prediction.var": "var", "label": "target"},
        "margin_ranking_loss": {"prediction.input1": "input1", "prediction.input2": "input2", "label": "target"},
        "cosine_embedding_loss": {"prediction.input1": "input1", "prediction.input2": "input2", "label": "target"},
        "triplet_margin_loss": {f"prediction.{name}": name for name in ("anchor", "positive", "negative")},
        "ctc_loss": {"prediction": "log_probs", "label": "targets"},
    }.get(function, {"prediction": "input", "label": "target"})
    assert watched.names == sorted(expected)
    for name, argument in expected.items():
        assert torch.equal(watched.only(name), bound[argument])
        assert watched.role(name) is (Role.LABEL if name == "label" else Role.PREDICTION)


def test_keyword_arguments_and_the_second_loss_of_a_forward(stage: Any) -> None:
    watched = stage(**BOTH)
    rows, classes = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    for _ in range(2):
        watched.call(nn.Identity(), rows)
        watched.loss(F.cross_entropy, target=classes, input=rows)
        watched.loss(F.mse_loss, rows, target=rows + 1)
    assert watched.names == ["label", "label_2", "prediction", "prediction_2"]
    # Two forwards of one step: the first loss of each.
    assert all(torch.equal(value, classes) for value in watched.saving.tensors["label"])
    assert len(watched.saving.tensors["label"]) == 2
    assert torch.equal(watched.saving.tensors["label_2"][0], rows + 1)


def test_only_what_is_asked_for_is_saved(stage: Any) -> None:
    watched = stage(collections=["labels"])
    rows, classes = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    watched.call(nn.Identity(), rows)
    watched.loss(F.cross_entropy, rows, classes)
    assert watched.names == ["label"]


@pytest.mark.parametrize("shape", [(7,), (5, 7), (5, 7, 2, 3)])
def test_logsumexp_is_over_the_classes(shape: tuple[int, ...], stage: Any) -> None:
    watched = stage(collections=["logsumexp"])
    logits = torch.randn(shape).half()
    watched.call(nn.Identity(), logits)
    watched.loss(F.cross_entropy, logits, torch.zeros([size for size in shape if size != 7], dtype=torch.long))
    watched.loss(F.mse_loss, logits, logits)
    assert watched.names == ["logsumexp"]
    saved = watched.only("logsumexp")
    assert torch.equal(saved, logits.float().logsumexp(0 if len(shape) == 1 else 1))
    assert watched.tags("logsumexp") == ("logsumexp",)


def test_logsumexp_of_many_logits_looks_at_so_many_rows_only() -> None:
    logits = torch.randn(64, 10)
    assert torch.equal(logsumexp(logits, most=160), logits[::4].logsumexp(1))
    image = torch.randn(2, 10, 8, 8)
    assert logsumexp(image, most=320).numel() * 10 <= 320
    assert torch.equal(logsumexp(image, most=10**9), image.logsumexp(1))


@pytest.mark.parametrize("on_device", [False, True], ids=["cpu", "device"])
@pytest.mark.parametrize(
    ("labels", "more", "right"),
    [
        ([2, 1, -100, -100], {}, 0.5),
        ([2, 1, 0, 0], {"ignore_index": 0}, 0.5),
        ([2, 2, 2, 2], {"ignore_index": 0}, 1.0),
        ([2, -100, 2, 2], {"reduction": "none"}, 1.0),
    ],
)
def test_labels_that_the_loss_ignores_are_not_judged(
    run_path: Path, on_device: bool, labels: list[int], more: dict[str, Any], right: float
) -> None:
    waits: list[str] = []
    model = nn.Linear(4, 3, bias=False)
    nn.init.zeros_(model.weight)
    with torch.no_grad():
        model.weight[2] = 1.0  # so that it always says 2
    inputs, target = torch.ones(4, 4), torch.tensor(labels)
    with FakeDevice(waits.append):
        if on_device:
            model, inputs, target = move(model), inputs.to(DEVICE), target.to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with watchglass.watch(model, run=run_path, strict=True):
            F.mse_loss(model(inputs), inputs[:, :3]).backward()
            optimizer.step()
            with torch.no_grad():
                F.cross_entropy(model(inputs), target, **more)
                # Probabilities have no label that could be ignored.
                F.cross_entropy(model(inputs), F.one_hot(target.clamp(min=0), 3).float())
    assert waits == []
    found = open_run(run_path).scalars("accuracy", mode=Mode.EVAL)[1]
    assert list(found) == [right, sum(label == 2 for label in labels) / 4]
