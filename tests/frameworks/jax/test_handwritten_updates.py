"""Updates that a jitted step writes out are those of an optimizer; what only looks like parameters is none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.jax_watched import watched

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

os.environ["JAX_PLATFORMS"] = "cpu"
jax = pytest.importorskip("jax", reason="JAX is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
jnp = jax.numpy

RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(10, 16, 6)).astype(np.float32)
LABELS = INPUTS[..., :3].argmax(-1)


def _parameters() -> Any:
    random = np.random.default_rng(1)
    return {
        name: {"w": random.normal(size=size).astype(np.float32) / 3, "b": np.zeros(size[1], np.float32)}
        for name, size in (("first", (6, 12)), ("last", (12, 3)))
    }


def _loss(params: Any, inputs: Any, labels: Any) -> Any:
    hidden = jnp.tanh(inputs @ params["first"]["w"] + params["first"]["b"])
    logits = hidden @ params["last"]["w"] + params["last"]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _updates(run: Any) -> list[str]:
    return sorted(name for name in run.tensor_names() if name.startswith("update/"))


@pytest.mark.parametrize("donates", [False, True])
def test_an_update_by_hand_is_recorded_from_the_second_step_on(donates: bool, tmp_path: Path) -> None:
    def program() -> Any:
        def step(params: Any, batch: Any) -> Any:
            loss, gradients = jax.value_and_grad(_loss)(params, *batch)
            return jax.tree.map(lambda each, gradient: each - 0.5 * gradient, params, gradients), loss

        step = jax.jit(step, donate_argnums=0) if donates else jax.jit(step)
        params, kept = jax.tree.map(jnp.asarray, _parameters()), []
        for batch in zip(INPUTS, LABELS, strict=True):
            params, loss = step(params, batch)
            kept.append(float(loss))
        return kept, np.asarray(params["last"]["w"]).tobytes()

    bare = program()
    found, run = watched(program, tmp_path / "run", save_interval=1, save_raw=True)
    assert found == bare
    assert _updates(run) == [f"update/{name}" for name in ("first.b", "first.w", "last.b", "last.w")]
    steps = run.tensor("update/first.w").reductions("count")[0].tolist()
    assert steps == list(range(1, 10))
    for name in ("first.w", "last.b"):
        gradient = run.tensor(f"gradient/{name}").value(4)
        np.testing.assert_allclose(run.tensor(f"update/{name}").value(4), -0.5 * gradient, rtol=1e-3, atol=1e-6)
    assert {fact.source for fact in run.facts("update_sample")} == {"ScriptOptimizer"}


def test_moments_beside_the_parameters_are_none(tmp_path: Path) -> None:
    def program() -> Any:
        @jax.jit
        def step(state: Any, batch: Any) -> Any:
            loss, gradients = jax.value_and_grad(_loss)(state["params"], *batch)
            moments = jax.tree.map(lambda moment, each: 0.9 * moment + each, state["moments"], gradients)
            params = jax.tree.map(lambda each, moment: each - 0.1 * moment, state["params"], moments)
            return loss, gradients, {"moments": moments, "params": params, "step": state["step"] + 1}

        params = _parameters()
        state = {"params": params, "moments": jax.tree.map(jnp.zeros_like, params), "step": 0}
        weights = []
        for batch in zip(INPUTS, LABELS, strict=True):
            _, _, state = step(state, batch)
            weights.append(np.abs(state["params"]["last"]["w"]).max())
        return weights

    bare = program()
    found, run = watched(program, tmp_path / "run", save_interval=1, save_raw=True)
    assert found == bare
    for number in (1, 6):
        weight = run.tensor("last.w").value(number) + run.tensor("update/last.w").value(number)
        assert np.abs(weight).max() == pytest.approx(bare[number], rel=1e-6)


def test_clipped_gradients_that_a_function_returns_are_no_parameters(tmp_path: Path) -> None:
    def program() -> Any:
        @jax.jit
        def gradients_of(params: Any, batch: Any) -> Any:
            loss, gradients = jax.value_and_grad(_loss)(params, *batch)
            return loss, jax.tree.map(lambda each: jnp.clip(each, -0.1, 0.1), gradients)

        params = _parameters()
        for batch in zip(INPUTS, LABELS, strict=True):
            _, gradients = gradients_of(params, batch)
            params = jax.tree.map(lambda each, gradient: each - 0.1 * gradient, params, gradients)
        return float(params["last"]["w"].sum())

    bare = program()
    found, run = watched(program, tmp_path / "run", save_interval=1)
    assert found == bare
    assert len(run.steps()) == 10
    assert _updates(run) == []
