"""Networks of one structure are models of their own, whether one function trains them or two, and are named stably."""

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
linen = pytest.importorskip("flax.linen", reason="flax is not installed")
jnp = jax.numpy


class Net(linen.Module):  # type: ignore[name-defined,misc]
    @linen.compact
    def __call__(self, inputs: Any) -> Any:
        return linen.Dense(3)(linen.relu(linen.Dense(5)(inputs)))


INPUTS = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
NET, ADAM = Net(), optax.adam(0.01)


def _parameters(seed: int) -> Any:
    return NET.init(jax.random.key(seed), INPUTS)["params"]


def _loss(params: Any, target: Any) -> Any:
    return ((NET.apply({"params": params}, INPUTS) - target) ** 2).mean()


def _step(params: Any, state: Any, target: Any) -> Any:
    loss, gradients = jax.value_and_grad(_loss)(params, target)
    updates, state = ADAM.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


def _steps_of(run: Any, name: str) -> list[int]:
    found: list[int] = run.tensor(name).reductions("count")[0].tolist()
    return found


@pytest.mark.parametrize("functions", [1, 2])
def test_networks_that_are_trained_in_turn_are_two_from_their_second_step_on(functions: int, tmp_path: Path) -> None:
    def program() -> list[float]:
        losses = []
        steps = [jax.jit(_step), jax.jit(lambda *args: _step(*args))] if functions == 2 else [jax.jit(_step)]
        networks = [[_parameters(seed), ADAM.init(_parameters(seed))] for seed in range(2)]
        for _ in range(8):
            for number, network in enumerate(networks):
                *network[:], loss = steps[number % functions](*network, float(number))
                losses.append(float(loss))
        return losses

    bare = program()
    found, run = watched(program, tmp_path / "run", ("optax", "flax"), save_interval=2)
    assert found == bare
    assert list(run.scalars("model_2/loss")[0]) == list(range(3, 16, 2))
    assert list(run.scalars("model_2/loss")[1]) == pytest.approx(bare[3::2])
    # The first step of the second network does not show yet that there are two.
    assert list(run.scalars("loss")[0]) == [0, 1, *range(2, 16, 2)]
    steps = _steps_of(run, "update/model_2.Dense_0.kernel")
    assert set(steps) <= set(range(3, 16, 2))
    assert len(steps) >= 3
    assert _steps_of(run, "model_2.Dense_1.output") == steps


def test_networks_of_one_function_are_named_by_their_place_among_its_arguments(tmp_path: Path) -> None:
    def program() -> list[float]:
        @jax.jit
        def step(one: Any, other: Any, states: Any) -> Any:
            gradients = [jax.grad(_loss)(one, NET.apply({"params": other}, INPUTS)), jax.grad(_loss)(other, 1.0)]
            updates, states = zip(*map(ADAM.update, gradients, states), strict=True)
            return *(optax.apply_updates(*each) for each in zip((one, other), updates, strict=True)), states

        trained = _parameters(0), _parameters(1), tuple(ADAM.init(_parameters(seed)) for seed in range(2))
        for _ in range(6):
            trained = step(*trained)
        return [float(leaf.sum()) for leaf in jax.tree.leaves(trained)]

    bare = program()
    found, run = watched(program, tmp_path / "run", ("optax", "flax"), save_interval=2)
    assert found == bare
    means = [run.tensor(f"{prefix}Dense_0.kernel").reductions("mean")[1][0] for prefix in ("", "model_2.")]
    assert means == pytest.approx([float(_parameters(seed)["Dense_0"]["kernel"].mean()) for seed in range(2)])
    for name in ("gradient/model_2.Dense_1.bias", "update/model_2.Dense_0.kernel", "model_2.Dense_0.output"):
        assert _steps_of(run, name) == [0, 2, 4], name


def test_a_target_network_is_not_the_one_that_is_trained(tmp_path: Path) -> None:
    def program() -> float:
        @jax.jit
        def step(params: Any, target: Any, state: Any) -> Any:
            wanted = NET.apply({"params": target}, INPUTS)
            return _step(params, state, wanted)

        params, target = _parameters(0), _parameters(1)
        state = ADAM.init(params)
        for _ in range(6):
            params, state, loss = step(params, target, state)
        return float(loss)

    bare = program()
    found, run = watched(program, tmp_path / "run", ("optax", "flax"), save_interval=2)
    assert found == bare
    assert not [name for name in run.tensor_names() if "model_2" in name]
    mean = float(NET.apply({"params": _parameters(0)}, INPUTS).mean())
    assert run.tensor("output").reductions("mean")[1][0] == pytest.approx(mean, rel=1e-5)


def test_parameters_that_the_script_changes_between_steps_are_the_same_network(tmp_path: Path) -> None:
    def program() -> float:
        step = jax.jit(_step)
        params = _parameters(0)
        state = ADAM.init(params)
        for _ in range(8):
            after, state, loss = step(params, state, 0.5)
            params = jax.tree.map(lambda leaf: leaf.clip(-0.3, 0.3), after)
        return float(loss)

    bare = program()
    found, run = watched(program, tmp_path / "run", ("optax", "flax"), save_interval=2)
    assert found == bare
    assert list(run.scalars("loss")[0]) == list(range(8))


def test_a_further_network_after_the_first_one_that_is_kept_is_another(tmp_path: Path) -> None:
    def program() -> list[Any]:
        step, kept = jax.jit(_step), []
        for seed in range(2):
            params = _parameters(seed)
            state = ADAM.init(params)
            for _ in range(5):
                params, state, _ = step(params, state, 0.5)
            kept.append(params)
        return [float(leaf.sum()) for leaf in jax.tree.leaves(kept)]

    bare = program()
    found, run = watched(program, tmp_path / "run", ("optax", "flax"), save_interval=2)
    assert found == bare
    assert list(run.scalars("model_2/loss")[0]) == [6, 7, 8, 9]
