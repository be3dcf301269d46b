"""Steps that cannot be seen: the training is as without watchglass, and the verdict says why, and the cure."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.jax_watched import watched
from watchglass.evaluate import judge_run

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

os.environ["JAX_PLATFORMS"] = "cpu"
jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

INPUTS = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)


def _step(weight: Any) -> Any:
    gradient = jax.grad(lambda weight: ((INPUTS @ weight - 1) ** 2).mean())(weight)
    return weight - 0.1 * gradient


def ahead_of_time() -> Any:
    weight = jnp.ones(3)
    compiled = jax.jit(lambda weight: _step(weight)).lower(weight).compile()
    for _ in range(4):
        weight = compiled(weight)
    return weight


def mapped() -> Any:
    weight = jnp.ones((1, 3))
    step = jax.pmap(lambda weight: _step(weight))
    for _ in range(4):
        weight = step(weight)
    return weight


def looped() -> Any:
    return jax.lax.fori_loop(0, 4, lambda _, weight: _step(weight), jnp.ones(3))


def in_a_condition() -> Any:
    step, weight = jax.jit(lambda go, weight: jax.lax.cond(go, _step, lambda weight: weight, weight)), jnp.ones(3)
    for _ in range(4):
        weight = step(True, weight)
    return weight


def sharded() -> Any:
    mesh, whole = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",)), jax.sharding.PartitionSpec()
    shard_map = getattr(jax, "shard_map", None)
    if shard_map is None:
        pytest.skip("jax.shard_map is newer than this JAX")
    step, weight = jax.jit(shard_map(_step, mesh=mesh, in_specs=whole, out_specs=whole)), jnp.ones(3)
    for _ in range(4):
        weight = step(weight)
    return weight


def jitted_before() -> Any:
    weight = jnp.ones(3)
    for _ in range(4):
        weight = before(weight)
    return weight


before = jax.jit(_step)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (ahead_of_time, r"compiled ahead of time"),
        (mapped, r"in pmap"),
        (looped, r"a loop of JAX outside of jax.jit"),
        (in_a_condition, r"inside a loop, a condition or a mapping"),
        (sharded, r"shard_map"),
        (jitted_before, r"jitted before watchglass was there.*watchglass\.jax\.jit"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_steps_that_cannot_be_seen_are_named_with_the_cure(program: Any, why: str, tmp_path: Path) -> None:
    found, run = watched(program, tmp_path / "run", ())
    assert len(run.steps()) == 0
    assert pytest.approx(np.asarray(found).reshape(-1)) == np.asarray(in_turn())
    verdict = judge_run(run)
    (said,) = {fact.source for fact in run.facts("hidden_steps")}
    assert re.search(why, said)
    assert verdict.unjudged == said


def in_turn() -> Any:
    weight = jnp.ones(3)
    for _ in range(4):
        weight = _step(weight)
    return weight
