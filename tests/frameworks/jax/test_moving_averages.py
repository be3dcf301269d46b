"""Moving averages of batch normalizations in linen, NNX and Equinox: those that a script drops are found."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.jax_watched import watched
from watchglass.evaluate import judge_run
from watchglass.records import facts

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

os.environ["JAX_PLATFORMS"] = "cpu"
jax = pytest.importorskip("jax", reason="JAX is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
linen = pytest.importorskip("flax.linen", reason="flax is not installed")
nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
eqx = pytest.importorskip("equinox", reason="Equinox is not installed")
INPUTS = np.random.default_rng(0).normal(2.0, 3.0, size=(16, 4)).astype(np.float32)
SGD = optax.sgd(0.01)


def of_linen(steps: int, *, keeps: bool) -> Any:
    net = linen.Sequential([linen.Dense(5), linen.BatchNorm(use_running_average=False), linen.Dense(1)])
    variables = net.init(jax.random.key(0), INPUTS)

    @jax.jit
    def step(params: Any, averages: Any) -> Any:
        def loss_of(params: Any) -> Any:
            found, changed = net.apply({"params": params, "batch_stats": averages}, INPUTS, mutable=["batch_stats"])
            return (found**2).mean(), changed["batch_stats"]

        (loss, changed), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, _ = SGD.update(gradients, SGD.init(params), params)
        return optax.apply_updates(params, updates), changed, loss

    params, averages = variables["params"], variables["batch_stats"]
    for _ in range(steps):
        params, changed, loss = step(params, averages)
        averages = changed if keeps else averages
    return float(loss)


def of_nnx(steps: int, *, keeps: bool) -> Any:
    rngs = nnx.Rngs(0)
    norm = nnx.BatchNorm(5, rngs=rngs, use_running_average=not keeps)
    net = nnx.Sequential(nnx.Linear(4, 5, rngs=rngs), norm, nnx.Linear(5, 1, rngs=rngs))
    optimizer = nnx.Optimizer(net, SGD, wrt=nnx.Param)

    @nnx.jit  # type: ignore[untyped-decorator]
    def step(net: Any, optimizer: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda net: (net(INPUTS) ** 2).mean())(net)
        optimizer.update(net, gradients)
        return loss

    return [float(step(net, optimizer)) for _ in range(steps)]


def of_equinox(steps: int, *, keeps: bool) -> Any:
    class Net(eqx.Module):  # type: ignore[name-defined,misc]
        first: Any
        norm: Any

        def __init__(self) -> None:
            self.first = eqx.nn.Linear(4, 5, key=jax.random.key(0))
            self.norm = eqx.nn.BatchNorm(5, axis_name="batch", mode="ema")

        def __call__(self, inputs: Any, state: Any) -> Any:
            found, state = self.norm(self.first(inputs), state)
            return found.sum(), state

    net, state = eqx.nn.make_with_state(Net)()

    @eqx.filter_jit  # type: ignore[untyped-decorator]
    def step(net: Any, state: Any) -> Any:
        def loss_of(net: Any) -> Any:
            over = jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
            found, changed = over(INPUTS, state)
            return ((found - 1) ** 2).mean(), changed

        (loss, changed), gradients = eqx.filter_value_and_grad(loss_of, has_aux=True)(net)
        updates, _ = SGD.update(gradients, SGD.init(eqx.filter(net, eqx.is_inexact_array)))
        return eqx.apply_updates(net, updates), changed, loss

    for _ in range(steps):
        net, changed, loss = step(net, jax.tree.map(lambda leaf: leaf, state))
        state = changed if keeps else state
    return float(loss)


@pytest.mark.parametrize(
    ("program", "keeps"), [(of_linen, True), (of_linen, False), (of_nnx, True), (of_nnx, False), (of_equinox, True)]
)
def test_averages_that_nothing_updates_are_found(program: Callable[..., Any], keeps: bool, tmp_path: Path) -> None:
    bare = program(12, keeps=keeps)
    libraries = ("optax", "flax", "equinox")
    found, run = watched(lambda: program(12, keeps=keeps), tmp_path / "run", libraries, save_interval=3)
    assert found == bare
    states = [module for fact in run.facts(facts.NormalizationStatistics) for module in fact.modules or ()]
    assert states
    assert {module.type for module in states} == {"BatchNorm"}
    assert {module.initial for module in states} == {not keeps}
    fired = {finding.rule for finding in judge_run(run).findings}
    assert ("NormalizationNeverUpdated" in fired) is not keeps
