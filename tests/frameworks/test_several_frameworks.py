"""Scripts that train models of two frameworks: each model has its number, its series, its tensors and its facts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

import watchglass
from frameworks.watched_scripts import compare_watched
from watchglass import Run

pytestmark = pytest.mark.slow


def watched(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The run of a script, which states what it has in common with the bare script, and its verdict."""
    missing = [name for name in ("jax", "flax", "keras", "tensorflow", "sklearn") if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    compare_watched("several", script, folder, monkeypatch)
    return watchglass.open_run(folder / "run")


def models_of(run: Run, kind: str) -> dict[str, set[int | None]]:
    """Numbers of models in the facts of a kind, by the source of the fact."""
    found: dict[str, set[int | None]] = {}
    for fact in run.facts(kind):
        found.setdefault(fact.source, set()).add(fact.model)
    return found


def test_a_network_of_jax_after_one_of_pytorch_is_the_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = watched("jax_learns_from_torch", tmp_path, monkeypatch)
    assert {"2.weight", "gradient/2.weight", "model_2.out.w", "gradient/model_2.out.w"} <= set(run.tensor_names())
    assert len(run.tensor("update/model_2.out.w").reductions("count")[0]) == 12
    assert models_of(run, "optimizer") == {"Adam": {None}, "optax": {1}}
    assert models_of(run, "model") == {"second step": {None}, "jax": {1}}
    assert models_of(run, "target_sketch")["jax"] == {1}


def test_the_verdict_names_the_network_that_is_ill_of_two_that_are_trained_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = watched("torch_beside_jax", tmp_path, monkeypatch)
    assert {"Dense_0.kernel", "Dense_0.output", "model_2.0.weight", "model_2.0.output"} <= set(run.tensor_names())
    assert {finding.model for finding in run.verdict().findings} == {1}
    assert models_of(run, "optimizer") == {"optax": {None}, "SGD": {1}}


def test_a_model_of_keras_keeps_its_number_when_the_script_trains_it_by_a_tape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = watched("keras_and_torch", tmp_path, monkeypatch)
    assert {"dense.kernel", "dense_1.output", "model_2.0.weight", "model_2.2.output"} <= set(run.tensor_names())
    assert not [name for name in run.tensor_names() if "model_3" in name]
    assert run.tensor("update/dense.kernel").reductions("count")[0].tolist() == [*range(0, 72, 8), 144, 152, 160]
    assert run.tensor("update/model_2.0.weight").reductions("count")[0].tolist() == list(range(72, 144, 8))
    assert models_of(run, "model") == {"keras": {None}, "first update": {1}, "tensorflow": {0}}
