"""The adapter of JAX passes the conformance suite."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from watchglass.capture import Hook, attach, loop
from watchglass.testing import AdapterCase, AdapterSuite

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

os.environ["JAX_PLATFORMS"] = "cpu"
jax = pytest.importorskip("jax", reason="JAX is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
linen = pytest.importorskip("flax.linen", reason="flax is not installed")


class JaxCase(AdapterCase):
    """A module of linen whose jitted step updates it by optax."""

    def __init__(self) -> None:
        super().__init__()

        class Net(linen.Module):  # type: ignore[name-defined,misc]
            @linen.compact
            def __call__(self, inputs: Any) -> Any:
                hidden = linen.relu(linen.Dense(8)(inputs))
                return linen.Dense(3)(hidden)

        random = np.random.default_rng(3)
        self.inputs = random.normal(size=(32, 6)).astype(np.float32)
        self.labels = self.inputs[:, :3].argmax(1)
        self._net = Net()
        self.model: Any = self._net.init(jax.random.key(0), self.inputs)["params"]
        self._optimizer: Any = None

    def attach(self, hook: Hook) -> None:
        super().attach(hook)
        for name in ("optax", "flax"):
            attach(hook.port, loop(name))

    def train(self, steps: int, after_step: Callable[[int], None]) -> None:
        if self._optimizer is None:  # made while it is watched, as by a script
            self._optimizer = optax.sgd(0.1, momentum=0.9)
            self._state = self._optimizer.init(self.model)

        def loss_of(params: Any) -> Any:
            logits = self._net.apply({"params": params}, self.inputs)
            return optax.softmax_cross_entropy_with_integer_labels(logits, self.labels).mean()

        @jax.jit
        def step(params: Any, state: Any) -> Any:
            loss, gradients = jax.value_and_grad(loss_of)(params)
            updates, state = self._optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, loss

        evaluate = jax.jit(lambda params: loss_of(params))
        for number in range(steps):
            self.model, self._state, loss = step(self.model, self._state)
            self.losses.append(float(loss))
            after_step(number)
            self.evaluation_losses.append(float(evaluate(self.model)))

    def parameters(self) -> Mapping[str, NDArray[Any]]:
        return {f"{layer}.{name}": np.array(leaf) for layer, each in self.model.items() for name, leaf in each.items()}


class TestJax(AdapterSuite):
    case = JaxCase

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _equal_programs_are_compiled_once(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
