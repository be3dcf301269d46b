"""Language models of JAX show how their labels lie to their tokens, and which positions attention sees."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax", reason="JAX is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
nnx = pytest.importorskip("flax.nnx", reason="Flax is not installed")

import watchglass  # noqa: E402
from watchglass.capture import Hook, attach, loop  # noqa: E402

pytestmark = [pytest.mark.own_process, pytest.mark.slow]
LENGTH, SIZE = 10, 20


def _by_softmax(hidden: Any, mask: Any) -> Any:
    scores = hidden @ hidden.swapaxes(-1, -2)
    return jax.nn.softmax(scores if mask is None else jax.numpy.where(mask, scores, -jax.numpy.inf)) @ hidden


def _by_jax(hidden: Any, mask: Any) -> Any:
    heads = hidden[:, :, None]
    return jax.nn.dot_product_attention(heads, heads, heads, mask=None if mask is None else mask[None, None])[:, :, 0]


def _by_bias(hidden: Any, mask: Any) -> Any:
    heads = hidden[:, :, None]
    bias = None if mask is None else jax.numpy.where(mask, 0.0, jax.numpy.finfo("float32").min)[None, None]
    return jax.nn.dot_product_attention(heads, heads, heads, bias)[:, :, 0]


@pytest.mark.parametrize("attend", [_by_softmax, _by_jax, _by_bias])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_shows_who_sees_whom(attend: Callable[..., Any], causal: bool, tmp_path: Path) -> None:
    class Decoder(nnx.Module):  # type: ignore[misc]  # a class of a library without types
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.tokens, self.head = nnx.Embed(SIZE, 8, rngs=rngs), nnx.Linear(8, SIZE, rngs=rngs)

        def __call__(self, inputs: Any) -> Any:
            mask = jax.numpy.tril(jax.numpy.ones((LENGTH, LENGTH), bool)) if causal else None
            return self.head(attend(self.tokens(inputs), mask))

    text = np.random.default_rng(0).integers(SIZE, size=(8, LENGTH + 1)).astype("int32")
    with Hook(tmp_path / "run", save_interval=1) as hook:
        for name in ("jax", "optax", "flax"):
            attach(hook.port, loop(name))
        model = Decoder()
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

        def loss_of(model: Any, inputs: Any, labels: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(model(inputs), labels).mean()

        @nnx.jit
        def step(model: Any, optimizer: Any, inputs: Any, labels: Any) -> Any:
            loss, gradients = nnx.value_and_grad(loss_of)(model, inputs, labels)
            optimizer.update(model, gradients)
            return loss

        for _ in range(3):
            step(model, optimizer, text[:, :-1], text[:, 1:])
    run = watchglass.open_run(tmp_path / "run")
    found = run.facts("token_targets")[0].data
    assert found["losses"][0]["agreeing"]["next"] == 1.0
    (call,) = found["attention"]
    assert (call["queries"], call["next"]) == (LENGTH, 0.0 if causal else 1.0)
    assert run.facts("output_sketch")[0].data["columns"] == SIZE
