"""Every reduction, each asked for alone, through a real training and through a loop that no adapter knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

import watchglass
from watchglass import Collection, Hook, Run, open_run
from watchglass.config import REDUCTION_NAMES
from watchglass.errors import UnknownNameError

#: What SageMaker Debugger has by these names, by NumPy; deviations are those of all elements, not of a sample.
PLAIN: dict[str, Callable[[NDArray[Any]], Any]] = {
    "min": np.min, "max": np.max, "mean": np.mean, "median": np.median, "std": np.std, "variance": np.var,
    "sum": np.sum, "prod": np.prod, "l1": lambda values: np.linalg.norm(values.ravel(), 1),
    "l2": lambda values: np.linalg.norm(values.ravel(), 2),
}  # fmt: skip
#: Those that no statistics give: they are computed only where somebody asks.
EXACT = {"median", "prod", "abs_median", "abs_min", "abs_prod"}
STEPS = 3


def of(values: Any, name: str) -> float:
    """What a reduction of a tensor should be."""
    wide = np.asarray(values, dtype=np.float64)
    return float(PLAIN[name.removeprefix("abs_")](np.abs(wide) if name.startswith("abs_") else wide))


def near(values: NDArray[Any], name: str) -> Any:
    """What may be found for it: within some roundings of what is added up."""
    wide = np.abs(np.asarray(values, dtype=np.float64))
    summed, squares = float(wide.sum()), float((wide**2).mean())
    # Digits of sums cancel, and those of the spread of magnitudes, which is made of two other numbers.
    off = {
        "sum": 1e-14 * summed,
        "mean": 1e-14 * summed,
        "abs_variance": 1e-14 * squares,
        "abs_std": 1e-7 * squares**0.5,
    }
    return pytest.approx(of(values, name), rel=1e-7 if name == "abs_std" else 1e-9, abs=off.get(name, 0.0))


def trained(path: Path, **settings: Any) -> tuple[Run, list[dict[str, NDArray[Any]]]]:
    """A run of a training run with PyTorch, and by step what its tensors really held."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    truth: list[dict[str, NDArray[Any]]] = []
    collections = settings.pop("collections", ["weights", "gradients", "updates", "inputs", "outputs", "predictions"])
    with watchglass.watch(model, run=path, strict=True, save_interval=1, collections=collections, **settings):
        for _ in range(STEPS):
            inputs = torch.randn(6, 5)
            optimizer.zero_grad()
            output = model(inputs)
            F.cross_entropy(output, inputs[:, :3].argmax(1)).backward()
            weight = model[0].weight.detach().clone()
            optimizer.step()
            found = {
                "0.weight": weight, "gradient/0.weight": model[0].weight.grad,
                "update/0.weight": model[0].weight.detach() - weight,
                "0.input.0": inputs, "2.output": output.detach(), "prediction": output.detach(),
            }  # fmt: skip
            truth.append({name: value.clone().numpy() for name, value in found.items()})  # type: ignore[union-attr]
    return open_run(path), truth


def looped(path: Path, **settings: Any) -> tuple[Run, list[dict[str, NDArray[Any]]]]:
    """The same of a loop by hand."""
    random = np.random.default_rng(3)
    truth: list[dict[str, NDArray[Any]]] = []
    with Hook(path, strict=True, save_interval=1, **{"collections": ["default"], **settings}) as hook:
        for _ in range(STEPS):
            values = {
                "wide": random.normal(size=(3, 4)), "narrow": random.normal(size=7).astype(np.float32),
                "whole": random.integers(-9, 9, size=(2, 2, 2)), "one": np.float64(random.normal()),
            }  # fmt: skip
            with hook.step("train"):
                for name, value in values.items():
                    hook.save_tensor(name, value)
            truth.append({name: np.array(value) for name, value in values.items()})
    return open_run(path), truth


WAYS = {"training": trained, "loop": looped}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [f"{prefix}{plain}" for prefix in ("", "abs_") for plain in PLAIN])
def test_a_reduction_is_numpys_of_the_true_tensor(tmp_path: Path, name: str, way: str) -> None:
    run, truth = WAYS[way](tmp_path / "run", reductions=[name])
    for step, tensors in enumerate(truth):
        for tensor, values in tensors.items():
            # Nothing of the tensors themselves was kept that it could be made of.
            assert not run.tensor(tensor).values()
            found = run.tensor(tensor).reduction(step, name)
            assert found == near(values, name), tensor


def test_no_other_names_exist() -> None:
    assert set(REDUCTION_NAMES) == {f"{prefix}{plain}" for prefix in ("", "abs_") for plain in PLAIN}


@pytest.mark.parametrize("way", WAYS)
def test_all_reductions_together_are_those_that_each_is_alone(tmp_path: Path, way: str) -> None:
    run, truth = WAYS[way](tmp_path / "run", reductions=list(REDUCTION_NAMES))
    for tensor, values in truth[1].items():
        for name in REDUCTION_NAMES:
            assert run.tensor(tensor).reduction(1, name) == near(values, name), (tensor, name)


@pytest.mark.parametrize("way", WAYS)
def test_unrequested_reductions_are_not_computed_and_the_rest_follows_from_the_statistics(
    tmp_path: Path, way: str
) -> None:
    run, truth = WAYS[way](tmp_path / "run")
    for tensor in truth[0]:
        for name in REDUCTION_NAMES:
            found = run.tensor(tensor).reductions(name)[1]
            assert len(found) == (0 if name in EXACT else STEPS), (tensor, name)


def test_a_reduction_belongs_to_the_collection_that_asks_for_it(tmp_path: Path) -> None:
    collections = [Collection("weights", reductions=("median",)), Collection("gradients", reductions=("prod",))]
    run, truth = trained(tmp_path / "run", collections=collections)
    assert run.tensor("0.weight").reduction(1, "median") == of(truth[1]["0.weight"], "median")
    assert run.tensor("gradient/0.weight").reduction(1, "prod") == near(truth[1]["gradient/0.weight"], "prod")
    assert not len(run.tensor("0.weight").reductions("prod")[1])
    assert not len(run.tensor("gradient/0.weight").reductions("median")[1])


# -- histograms and shapes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_histograms_are_there_unless_they_are_switched_off(tmp_path: Path, way: str) -> None:
    with_, truth = WAYS[way](tmp_path / "with")
    without, _ = WAYS[way](tmp_path / "without", save_histogram=False)
    for tensor, values in truth[0].items():
        found = with_.tensor(tensor).histograms()
        assert list(found) == list(range(STEPS)), tensor
        assert int(found[0].counts.sum()) == np.count_nonzero(values), tensor
        assert without.tensor(tensor).histograms() == {}
        with pytest.raises(UnknownNameError, match="save_histogram=True"):
            without.tensor(tensor).histogram(0)
        # The statistics do not need them.
        for name in ("min", "max", "sum", "l2"):
            assert without.tensor(tensor).reduction(0, name) == with_.tensor(tensor).reduction(0, name)


def test_a_collection_without_histograms_leaves_those_of_others_alone(tmp_path: Path) -> None:
    run, _ = trained(tmp_path / "run", collections=[Collection("weights", save_histogram=False), "gradients"])
    assert run.tensor("0.weight").histograms() == {}
    assert list(run.tensor("gradient/0.weight").histograms()) == list(range(STEPS))


@pytest.mark.parametrize("way", WAYS)
def test_shapes_are_in_the_catalog_and_at_every_capture_where_asked(tmp_path: Path, way: str) -> None:
    run, truth = WAYS[way](tmp_path / "run", save_shape=True)
    for tensor, values in truth[0].items():
        assert run.tensor(tensor).info.shape == values.shape
        facts = [fact for fact in run.facts("shape") if fact.data["tensor"] == tensor]
        shapes = [(fact.global_step, fact.data["shape"]) for fact in facts]
        assert shapes == [(step, list(values.shape)) for step in range(STEPS)], tensor
    quiet, _ = WAYS[way](tmp_path / "quiet")
    assert quiet.facts("shape") == []


def test_a_shape_that_changes_is_reported_where_it_does(tmp_path: Path) -> None:
    with Hook(tmp_path / "run", strict=True, save_interval=1, save_shape=True) as hook:
        for rows in (4, 4, 2):
            with hook.step("train"):
                hook.save_tensor("batch", np.zeros((rows, 3)))
    run = open_run(tmp_path / "run")
    assert [fact.data["shape"] for fact in run.facts("shape")] == [[4, 3], [4, 3], [2, 3]]
    assert run.tensor("batch").info.shape == (4, 3), "as it was first met"
