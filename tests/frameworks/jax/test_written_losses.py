"""Squared and absolute errors that a script of JAX writes out are judged as calls of loss functions are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax", reason="JAX is not installed")
eqx = pytest.importorskip("equinox", reason="Equinox is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
jnp = jax.numpy

import watchglass  # noqa: E402
from watchglass import Mode  # noqa: E402
from watchglass.capture import Hook, attach, loop  # noqa: E402

pytestmark = [pytest.mark.own_process, pytest.mark.slow]


def _squared(outputs: Any, targets: Any) -> Any:
    return jnp.mean((outputs - targets) ** 2)


def _reversed(outputs: Any, targets: Any) -> Any:
    return 0.5 * jnp.square(targets - outputs).mean()


def _summed(outputs: Any, targets: Any) -> Any:
    errors = outputs - targets
    return (errors * errors).sum()


def _absolute(outputs: Any, targets: Any) -> Any:
    return jnp.abs(outputs - targets).mean()


def _train(loss: Callable[[Any, Any], Any], path: Path | None) -> tuple[list[float], Any]:
    """Losses of training and evaluation, and the run."""
    inputs = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    targets = inputs[:, 0] * 2 - 1
    hook = None if path is None else Hook(path, save_interval=1)
    for name in ("jax", "optax", "equinox") if hook is not None else ():
        attach(hook.port, loop(name))  # type: ignore[union-attr]  # there is one
    optimizer = optax.sgd(0.01)
    model = eqx.nn.MLP(3, "scalar", 4, 1, final_activation=jax.nn.relu, key=jax.random.key(0))

    def loss_of(model: Any, inputs: Any, targets: Any) -> Any:
        return loss(jax.vmap(model)(inputs), targets)

    @eqx.filter_jit
    def step(model: Any, state: Any, inputs: Any, targets: Any) -> Any:
        value, gradients = eqx.filter_value_and_grad(loss_of)(model, inputs, targets)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(model, updates), state, value

    state, losses = optimizer.init(eqx.filter(model, eqx.is_array)), []
    for _ in range(4):
        model, state, value = step(model, state, inputs, targets)
        losses.append(float(value))
    losses.append(float(eqx.filter_jit(loss_of)(model, inputs[:8], targets[:8])))
    if hook is not None:
        hook.close()
    return losses, None if path is None else watchglass.open_run(path)


@pytest.mark.parametrize(
    ("loss", "function", "reduction"),
    [
        (_squared, "mse_loss", "mean"), (_reversed, "mse_loss", "mean"), (_summed, "mse_loss", "sum"),
        (_absolute, "l1_loss", "mean"),
    ],
)  # fmt: skip
def test_a_written_loss_is_judged(
    loss: Callable[[Any, Any], Any], function: str, reduction: str, tmp_path: Path
) -> None:
    bare, _ = _train(loss, None)
    watched, run = _train(loss, tmp_path / "run")
    assert watched == bare
    call = run.facts("loss_call")[0].data
    assert (call["function"], call["reduction"], call["operation"]) == (function, reduction, "relu")
    sketch = run.facts("target_sketch")[0].data
    targets = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")[:, 0] * 2 - 1
    assert (sketch["shape"], sketch["min"]) == ([16], pytest.approx(targets.min()))
    assert list(run.scalars("loss", Mode.EVAL)[1]) == pytest.approx(bare[-1:])


def test_a_target_that_depends_on_parameters_is_none(tmp_path: Path) -> None:
    _, run = _train(lambda outputs, targets: jnp.mean((outputs - outputs.mean()) ** 2), tmp_path / "run")
    assert not run.facts("target_sketch")
