"""Compiled steps of JAX that return statistics in place of tensors, as on a device; here on a CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import watchglass
from frameworks.reduced_cases import reduce_everything, same_runs
from watchglass.capture import attach, loop
from watchglass.records import facts

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
jax = pytest.importorskip("jax", reason="JAX is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
linen = pytest.importorskip("flax.linen", reason="Flax is not installed")
jnp = jax.numpy

COLLECTIONS = ["weights", "biases", "gradients", "updates", "layers", "optimizer_variables"]
WIDTH = 24


class Net(linen.Module):
    @linen.compact
    def __call__(self, inputs: Any) -> Any:
        hidden = linen.relu(linen.Dense(WIDTH)(inputs))
        return linen.Dense(3)(linen.relu(linen.Dense(WIDTH)(hidden)))


def _batches(steps: int) -> Any:
    inputs = np.random.default_rng(0).normal(size=(steps, 32, WIDTH)).astype(np.float32)
    return [(each, each[:, :3].argmax(1)) for each in inputs]


def _loss(params: Any, inputs: Any, labels: Any) -> Any:
    logits = Net().apply(params, inputs)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def whole_step(steps: int, params: Any, **options: Any) -> Any:
    tx = optax.adam(1e-3)

    def step(params: Any, state: Any, inputs: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(_loss)(params, inputs, labels)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    jitted, losses = jax.jit(step, **options), []
    state = tx.init(params)
    for inputs, labels in _batches(steps):
        params, state, loss = jitted(params, state, inputs, labels)
        losses.append(float(loss))
    return losses, params


def donated(steps: int, params: Any) -> Any:
    return whole_step(steps, params, donate_argnums=(0, 1))


def update_apart(steps: int, params: Any) -> Any:
    """Two micro-batches, whose gradients a second function applies."""
    tx, gradient = optax.sgd(0.05), jax.jit(jax.value_and_grad(_loss))

    @jax.jit
    def apply(params: Any, state: Any, one: Any, other: Any) -> Any:
        updates, state = tx.update(jax.tree.map(lambda a, b: (a + b) / 2, one, other), state, params)
        return optax.apply_updates(params, updates), state

    state, losses = tx.init(params), []
    for inputs, labels in _batches(steps):
        (loss, one), (_, other) = (gradient(params, inputs[half], labels[half]) for half in HALVES)
        params, state = apply(params, state, one, other)
        losses.append(float(loss))
    return losses, params


HALVES = (slice(0, 16), slice(16, 32))


def sharded(steps: int, params: Any) -> Any:
    """Kernels and batches lie on two devices."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("both",))

    def place(leaf: Any) -> Any:
        by_column = leaf.ndim == 2 and leaf.shape[1] % 2 == 0
        return NamedSharding(mesh, PartitionSpec(None, "both") if by_column else PartitionSpec())

    return whole_step(steps, jax.tree.map(lambda leaf: jax.device_put(leaf, place(leaf)), params))


def _parameters() -> Any:
    return Net().init(jax.random.key(0), jnp.zeros((1, WIDTH)))


def _watched(program: Callable[..., Any], path: Path, steps: int) -> Any:
    with watchglass.Hook(path, strict=True, save_interval=2, collections=COLLECTIONS) as hook:
        for name in ("jax", "optax", "flax"):
            attach(hook.port, loop(name))
        result = program(steps, _parameters())
    return result, watchglass.open_run(path)


def _bits(trained: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(trained)]


@pytest.mark.parametrize("program", [whole_step, donated, update_apart, sharded])
def test_rows_are_those_of_tensors(program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = program(5, _parameters())
    on_host, expected = _watched(program, tmp_path / "host", 5)
    assert _bits(on_host) == _bits(bare)
    from watchglass.capture.jax.arrays import JaxArrays

    reduce_everything(monkeypatch, JaxArrays, "watchglass.capture.jax.functions")
    on_device, found = _watched(program, tmp_path / "device", 5)
    assert _bits(on_device) == _bits(bare)
    same_runs(found, expected)
    assert found.tensor("Dense_1.kernel").steps() == [0, 2, 4]
    assert found.facts(facts.UpdateSample)
