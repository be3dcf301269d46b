"""Which parameters optimizers of optax get, and which of the others are frozen on purpose."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.jax_watched import watched
from watchglass import Run
from watchglass.records import Role

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

os.environ["JAX_PLATFORMS"] = "cpu"
jax = pytest.importorskip("jax", reason="JAX is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
jnp = jax.numpy

KINDS = {"first": "train", "second": "keep", "third": "train"}


def train(tx: Any, path: Path, given: tuple[str, ...] = tuple(KINDS), steps: int = 60, *, cut: bool = False) -> Run:
    """The run of a training whose optimizer gets some of the parameters; maybe no gradient gets to the first layer."""

    def program() -> None:
        random = np.random.default_rng(0)
        params = {name: jnp.asarray(random.normal(size=(6, 6)).astype("f4") / 2) for name in KINDS}
        inputs = random.normal(size=(32, 6)).astype("f4")
        optimizer = tx()

        def of(tree: Any) -> Any:
            return {name: tree[name] for name in given}

        def loss_of(params: Any) -> Any:
            hidden = inputs @ params["first"]
            hidden = jax.nn.relu((jax.lax.stop_gradient(hidden) if cut else hidden) @ params["second"])
            return optax.l2_loss(hidden @ params["third"], inputs).mean()

        @jax.jit
        def step(params: Any, state: Any) -> Any:
            loss, gradients = jax.value_and_grad(loss_of)(params)
            updates, state = optimizer.update(of(gradients), state, of(params))
            return {**params, **optax.apply_updates(of(params), updates)}, state, loss

        state = optimizer.init(of(params))
        for _ in range(steps):
            params, state, _ = step(params, state)

    return watched(program, path, save_interval=4)[1]


def fired(run: Run) -> set[str]:
    """The rules that find something about parameters that do not change."""
    names = {finding.rule for finding in run.verdict().findings}
    return names & {"OptimizerMissesParameter", "UnchangedTensor", "UnusedParameter", "FrozenByMistake"}


def test_a_parameter_that_the_optimizer_does_not_get_is_found(tmp_path: Path) -> None:
    run = train(lambda: optax.adam(1e-3), tmp_path / "run", ("first", "third"))
    (fact,) = run.facts("membership")
    assert fact.data["optimizers"]["Adam"]["parameters"] == 2
    assert fact.data["left_out_beside"] == {"count": 1, "names": ["second"]}
    assert fired(run) == {"OptimizerMissesParameter", "UnchangedTensor"}


@pytest.mark.parametrize("clips", [False, True])
def test_a_parameter_that_is_set_to_zero_updates_is_frozen(clips: bool, tmp_path: Path) -> None:
    def tx() -> Any:
        parts = {"train": optax.adam(1e-3), "keep": optax.set_to_zero()}
        before = (optax.clip_by_global_norm(1.0),) if clips else ()
        return optax.chain(*before, optax.multi_transform(parts, KINDS))

    run = train(tx, tmp_path / "run")
    (fact,) = run.facts("membership")
    assert (fact.data["trainable"], fact.data["left_out"]["count"], fact.model) == (2, 0, None)
    names = {role: set(run.tensor_names(role=role)) for role in (Role.WEIGHT, Role.GRADIENT)}
    assert names == {Role.WEIGHT: {"first", "third"}, Role.GRADIENT: {f"gradient/{name}" for name in KINDS}}
    assert fired(run) == set()


def test_a_parameter_that_the_loss_does_not_depend_on_is_found(tmp_path: Path) -> None:
    run = train(lambda: optax.adam(1e-3), tmp_path / "run", cut=True)
    (fact,) = run.facts("membership")
    assert fact.data["without_gradient"] == {"count": 1, "names": ["first"]}
    assert "UnusedParameter" in fired(run)


def test_updates_in_a_condition_claim_nothing(tmp_path: Path) -> None:
    """Of ``optax.MultiSteps``, which updates at each eighth step alone."""
    run = train(lambda: optax.MultiSteps(optax.adam(1e-3), 8), tmp_path / "run")
    assert run.facts("membership") == []
    assert "OptimizerMissesParameter" not in fired(run)


def test_an_optimizer_with_injected_settings_has_its_type_and_its_rate(tmp_path: Path) -> None:
    run = train(lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.5), tmp_path / "run")
    (fact,) = run.facts("optimizer")
    assert (fact.data["type"], fact.data["groups"][0]["lr"], fact.data["groups"][0]["eps"]) == ("Adam", 0.5, 1e-8)
    # Read from the state, which the script may change: at captured steps.
    assert run.scalars("learning_rate")[1].tolist() == [0.5] * 15
    assert run.facts("membership")[0].data["optimizers"]["Adam"]["parameters"] == 3
