"""Answers of classifiers, in every form in which predictions and labels are captured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from watchglass.errors import InvalidValueError
from watchglass.records import Mode
from watchglass.run import Run, open_run
from watchglass.testing import build_run
from watchglass.view.confusion import confusion, confusion_grid, confusion_sentence


def run_of(path: Path, prediction: Any, label: Any, mode: Mode = Mode.TRAIN) -> Run:
    raw = {"prediction": np.asarray(prediction, np.float32), "label": np.asarray(label)}
    return open_run(build_run(path / "run", [{"raw": raw, "scalars": {"loss": 1.0}, "mode": mode}]))


def test_the_greatest_number_is_the_answer(tmp_path: Path) -> None:
    found = confusion(run_of(tmp_path, [[3, 1, 0], [0, 1, 0], [0, 2, 5], [9, 0, 1]], [0, 2, 2, 2]))
    assert found.counts.tolist() == [[1, 0, 0], [0, 0, 0], [1, 1, 1]]
    assert found.accuracy == 0.5
    assert found.worst() == [(2, 1, 1), (2, 0, 1)]
    grid = confusion_grid(found)
    np.testing.assert_allclose(grid.cells[2], [1 / 3] * 3, rtol=1e-6)
    assert np.isnan(grid.cells[1]).all()  # no example has this label
    assert grid.title == "Confusion: 50 % right of 4 examples, TRAIN step 0"
    sentence = "Most frequent mistakes: label 2 as 1 (1 example); label 2 as 0 (1 example)."
    assert confusion_sentence(found) == sentence


@pytest.mark.parametrize(
    ("prediction", "threshold"),
    [([0.2, 0.9, 0.6, 0.4], 0.5), ([[-2.0], [3.0], [0.1], [-0.1]], 0.0)],
    ids=["probabilities", "logits"],
)
def test_one_number_for_two_classes(tmp_path: Path, prediction: Any, threshold: float) -> None:
    found = confusion(run_of(tmp_path, prediction, [0.0, 1.0, 0.0, 1.0]))
    assert (found.counts.tolist(), found.threshold) == ([[1, 1], [1, 1]], threshold)


def test_labels_as_shares_of_classes_and_labels_that_losses_ignore(tmp_path: Path) -> None:
    shares = confusion(run_of(tmp_path / "a", [[3, 1], [0, 1]], [[0.9, 0.1], [0.8, 0.2]]))
    assert shares.counts.tolist() == [[1, 1], [0, 0]]
    tokens = confusion(run_of(tmp_path / "b", [[[3, 0, 0], [1, 1, 9]]], [[0, -100, 1]]))
    assert tokens.counts.tolist() == [[1, 0], [0, 1]]


def test_evaluations_come_first(tmp_path: Path) -> None:
    raw = {"prediction": np.eye(2, dtype=np.float32), "label": np.array([0, 1])}
    steps = [
        {"raw": raw, "scalars": {"loss": 1.0}, "mode": mode}
        for mode in (Mode.EVAL, Mode.TRAIN, Mode.EVAL, Mode.EVAL, Mode.TRAIN)
    ]
    run = open_run(build_run(tmp_path / "run", steps))
    assert (confusion(run).mode, confusion(run).steps) == (Mode.EVAL, (1, 2))
    assert confusion(run, steps=range(1)).steps == (0,)
    assert confusion(run, Mode.TRAIN).steps == (1,)


@pytest.mark.parametrize(
    ("prediction", "label", "message"),
    [
        ([[1.0, 2.0]], [0.5], r"classes as labels, one for each prediction, but got labels \[1\] of float64"),
        ([[1.0, 2.0]], [0, 1], r"but got labels \[2\] of int64 for predictions \[1, 2\]"),
        ([[1.0, 2.0]], [-1], "but got 2 classes and 0 labels"),
        (np.zeros((1, 300)), [0], "2 to 200 classes and at least one label, but got 300 classes"),
    ],
)
def test_what_is_no_classifier_is_refused(tmp_path: Path, prediction: Any, label: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        confusion(run_of(tmp_path, prediction, label))
