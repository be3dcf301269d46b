"""Weights of PyTorch count units along their first axis, kernels of Keras and JAX along their last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moments import views_shown
from watchglass.evaluate import Follower
from watchglass.records import ModuleKind, Role, TensorInfo
from watchglass.rules import signals
from watchglass.rules.classic import underfit
from watchglass.store import LocalStore
from watchglass.testing import RunBuilder, Step

HIDDEN, HEAD = (30, 200), (200, 10)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_classes_and_width_are_counted_along_the_axis_of_units(tmp_path: Path, last: bool) -> None:
    shapes = {"hidden.weight": HIDDEN, "head.weight": HEAD}
    rows = {name: np.ones(shape if last else shape[::-1]) for name, shape in shapes.items()}
    infos = [
        TensorInfo(
            0, name, Role.WEIGHT, name.partition(".")[0], "Dense", place, rows[name].shape, "float64",
            1 if last else 0, module_kind=ModuleKind.LINEAR,
        )
        for place, name in enumerate(shapes)
    ]  # fmt: skip
    with RunBuilder(tmp_path / "run", tensors=infos) as builder:
        for _ in range(3):
            builder.step(Step({"loss": 1.0, "accuracy": 0.5}, rows))
    view = [view for views in views_shown(Follower(LocalStore(tmp_path / "run")).poll()) for view in views][-1]
    assert signals.classes(view) == 10
    assert underfit._widest(view) == 200
