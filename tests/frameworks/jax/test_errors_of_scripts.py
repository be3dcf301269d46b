"""Exceptions of a script, and how often its functions are traced, while JAX is watched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import watchglass
from frameworks.jax_watched import watched
from watchglass.records import facts

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

os.environ["JAX_PLATFORMS"] = "cpu"
jax = pytest.importorskip("jax", reason="JAX is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
jnp = jax.numpy


class OwnError(Exception):
    """Raised by the script."""


def _train(meddle: Callable[[int], None], seen: list[str] | None = None) -> list[float]:
    """Ten steps of a jitted function that calls ``meddle`` with the number of its trace; errors are written down."""
    traces, losses = [0], []

    @jax.jit
    def step(weight: Any, inputs: Any) -> Any:
        traces[0] += 1
        meddle(traces[0])
        loss, gradient = jax.value_and_grad(lambda weight: ((inputs @ weight) ** 2).mean())(weight)
        return weight - 0.1 * gradient, loss

    weight, inputs = jnp.ones(3), np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    for _ in range(10):
        try:
            weight, loss = step(weight, inputs)
        except OwnError as error:
            seen = [] if seen is None else seen
            seen.append(str(error))
        else:
            losses.append(float(loss))
    return [*losses, *map(float, weight)]


def test_an_error_of_the_first_trace_is_that_of_the_first_call_and_the_training_goes_on(tmp_path: Path) -> None:
    def once(trace: int) -> None:
        if trace == 1:
            raise OwnError("only once")

    bare_errors: list[str] = []
    errors: list[str] = []
    bare = _train(once, bare_errors)
    found, run = watched(lambda: _train(once, errors), tmp_path / "run", save_interval=2)
    assert found == bare
    assert errors == bare_errors == ["only once"]
    assert list(run.scalars("loss")[0]) == list(range(9))


def test_a_function_that_raises_only_at_its_second_trace_trains_on_with_its_losses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def second(trace: int) -> None:
        if trace == 2:
            raise OwnError("twice")

    errors: list[str] = []
    bare = _train(second)
    found, run = watched(lambda: _train(second, errors), tmp_path / "run", save_interval=2)
    assert found == bare
    assert not errors
    assert list(run.scalars("loss")[1]) == pytest.approx(bare[:10])
    assert (
        len([record for record in caplog.records if "tracing it a second time raised OwnError" in record.message]) == 1
    )
    (fact,) = run.facts(facts.NotCapturable)
    assert fact.modules[0].endswith("step")


def test_an_error_that_only_the_twin_meets_leaves_the_script_alone(tmp_path: Path) -> None:
    def program() -> list[float]:
        @jax.jit
        def step(weight: Any) -> Any:
            def loss_of(weight: Any) -> Any:
                watchglass.jax.observe(jnp.log(weight - 2.0), "logarithm")  # not a number, and used for nothing
                return (weight**2).sum()

            loss, gradient = jax.value_and_grad(loss_of)(weight)
            return weight - 0.1 * gradient, loss

        weight, losses = jnp.ones(3), []
        with jax.debug_nans(True):
            for _ in range(6):
                weight, loss = step(weight)
                losses.append(float(loss))
        return losses

    bare = program()
    found, run = watched(program, tmp_path / "run", save_interval=2)
    assert found == bare
    assert list(run.scalars("loss")[1]) == pytest.approx(bare)


def test_an_error_of_a_due_call_is_the_own_one_of_the_script(tmp_path: Path) -> None:
    def program() -> list[float]:
        def check(value: Any) -> Any:
            if value > 3:
                raise OwnError("too large")
            return value

        @jax.jit
        def step(weight: Any, scale: Any) -> Any:
            jax.pure_callback(check, jax.ShapeDtypeStruct((), np.float32), scale)
            loss, gradient = jax.value_and_grad(lambda weight: (weight**2).sum())(weight)
            return weight - 0.1 * gradient, loss + jax.pure_callback(check, jax.ShapeDtypeStruct((), np.float32), scale)

        weight, losses = jnp.ones(3), []
        for number in range(8):
            try:
                weight, loss = step(weight, np.float32(number))
                losses.append(float(loss))
            except (ValueError, jax.errors.JaxRuntimeError) as error:
                losses.append("too large" in str(error))
        return losses

    bare = program()
    assert True in bare
    found, _ = watched(program, tmp_path / "run", save_interval=1)
    assert found == bare


def test_helper_functions_are_traced_once_and_steps_twice(tmp_path: Path) -> None:
    def program() -> dict[str, int]:
        traces = dict.fromkeys(("helper", "inner", "step"), 0)

        @jax.jit
        def helper(value: Any) -> Any:
            traces["helper"] += 1
            return value * 2

        @jax.jit
        def inner(value: Any) -> Any:
            traces["inner"] += 1
            return value**2

        @jax.jit
        def step(weight: Any) -> Any:
            traces["step"] += 1
            loss, gradient = jax.value_and_grad(lambda weight: inner(weight).sum())(weight)
            return weight - 0.1 * gradient, loss

        weight = jnp.ones(3)
        for _ in range(6):
            weight, _ = step(helper(weight))
        return traces

    assert program() == {"helper": 1, "inner": 1, "step": 1}
    found, _ = watched(program, tmp_path / "run", save_interval=2)
    assert found == {"helper": 1, "inner": 2, "step": 2}


def test_functions_that_are_not_jitted_for_once_are_an_eager_loop(tmp_path: Path) -> None:
    def program() -> list[float]:
        with jax.disable_jit():
            return _train(lambda trace: None)

    bare = program()
    found, run = watched(program, tmp_path / "run", save_interval=2)
    assert found == bare
    assert list(run.scalars("loss")[1]) == pytest.approx(bare[:10])
