"""The batch of a step in JAX is found in whatever way its arrays are passed; labels, keys and states are none of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.jax_watched import watched

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

os.environ["JAX_PLATFORMS"] = "cpu"
jax = pytest.importorskip("jax", reason="JAX is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
struct = pytest.importorskip("flax.struct", reason="flax is not installed")
nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
equinox = pytest.importorskip("equinox", reason="equinox is not installed")
jnp = jax.numpy

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(size=(8, 16, 6)).astype(np.float32)
LABELS = IMAGES[..., :3].argmax(-1)
SGD = optax.sgd(0.1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Batch:
    image: Any
    label: Any


@struct.dataclass
class FlaxBatch:
    image: Any
    label: Any


def _parameters() -> Any:
    random = np.random.default_rng(1)
    # Weights with as many rows as a batch.
    return {name: random.normal(size=size).astype(np.float32) / 4 for name, size in (("in", (6, 16)), ("out", (16, 3)))}


def _answers(params: Any, images: Any) -> Any:
    return jnp.tanh(images @ params["in"]) @ params["out"]


def _loss(params: Any, images: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(_answers(params, images), labels).mean()


def _updated(params: Any, state: Any, gradients: Any) -> Any:
    updates, state = SGD.update(gradients, state, params)
    return optax.apply_updates(params, updates), state


def _paths(run: Any, kind: str = "input_sketch") -> set[tuple[Any, ...]]:
    return {(fact.data.get("path"), tuple(fact.data["shape"]), fact.data["dtype"]) for fact in run.facts(kind)}


@pytest.mark.parametrize("kind", ["arrays", "tuple", "dict", "dataclass", "struct", "by name"])
def test_images_are_the_batch_and_labels_are_not(kind: str, tmp_path: Path) -> None:
    makers: dict[str, Callable[[Any, Any], Any]] = {
        "dict": lambda image, label: {"image": image, "label": label},
        "dataclass": Batch, "struct": FlaxBatch, "tuple": lambda image, label: (image, label),
    }  # fmt: skip

    def program() -> Any:
        def of(batch: Any) -> Any:
            if isinstance(batch, tuple):
                return batch
            return (batch["image"], batch["label"]) if isinstance(batch, dict) else (batch.image, batch.label)

        @jax.jit
        def step(params: Any, state: Any, *batch: Any, **named: Any) -> Any:
            image, label = (named["image"], named["label"]) if named else batch if len(batch) > 1 else of(batch[0])
            loss, gradients = jax.value_and_grad(_loss)(params, image, label)
            return *_updated(params, state, gradients), loss

        params = _parameters()
        state = SGD.init(params)
        for image, label in zip(IMAGES, LABELS, strict=True):
            if kind == "by name":
                params, state, loss = step(params, state, image=image, label=label)
            else:
                given = (image, label) if kind == "arrays" else (makers[kind](image, label),)
                params, state, loss = step(params, state, *given)
        return float(loss)

    bare = program()
    found, run = watched(program, tmp_path / "run", ("optax", "flax"), save_interval=2)
    assert found == bare
    assert len({tuple(fact.data["hashes"]) for fact in run.facts("batch")}) == 4
    assert {shape for _, shape, _ in _paths(run)} == {(16, 6)}
    assert {dtype for _, _, dtype in _paths(run)} == {"float32"}
    assert run.facts("target_sketch")


def test_a_step_with_a_key_a_mask_and_a_state_has_what_the_answers_are_computed_from(tmp_path: Path) -> None:
    def program() -> Any:
        def loss_of(params: Any, batch: Any, key: Any, moving: Any) -> Any:
            noise = jax.random.bernoulli(key, 0.9, batch["image"].shape)
            images = (batch["image"] - moving["mean"]) * batch["mask"][:, None] * noise
            return _loss(params, images, batch["label"])

        @jax.jit
        def step(params: Any, state: Any, batch: Any, key: Any, moving: Any) -> Any:
            loss, gradients = jax.value_and_grad(loss_of)(params, batch, key, moving)
            moving = {"mean": 0.9 * moving["mean"] + 0.1 * batch["image"].mean(0)}
            return *_updated(params, state, gradients), moving, loss

        params, moving = _parameters(), {"mean": np.zeros(6, np.float32)}
        state = SGD.init(params)
        for number, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
            batch = {"image": image, "mask": np.ones(16, np.int32), "label": label, "index": np.arange(16)}
            params, state, moving, loss = step(params, state, batch, jax.random.PRNGKey(number), moving)
        return float(loss)

    bare = program()
    found, run = watched(program, tmp_path / "run", save_interval=2)
    assert found == bare
    assert {(shape, dtype) for _, shape, dtype in _paths(run)} == {((16, 6), "float32"), ((16,), "int32")}


def test_models_of_nnx_and_equinox_get_their_batch_from_a_mapping(tmp_path: Path) -> None:
    def program() -> Any:
        class Net(nnx.Module):  # type: ignore[name-defined,misc]
            def __init__(self, rngs: Any) -> None:
                self.first, self.last = nnx.Linear(6, 16, rngs=rngs), nnx.Linear(16, 3, rngs=rngs)

            def __call__(self, images: Any) -> Any:
                return self.last(nnx.relu(self.first(images)))

        judge = optax.softmax_cross_entropy_with_integer_labels

        @nnx.jit
        def step(net: Any, optimizer: Any, batch: Any) -> Any:
            loss, gradients = nnx.value_and_grad(lambda net: judge(net(batch["image"]), batch["label"]).mean())(net)
            optimizer.update(net, gradients)
            return loss

        @equinox.filter_jit
        def train(model: Any, state: Any, batch: Any) -> Any:
            def loss_of(model: Any) -> Any:
                return judge(jax.vmap(model)(batch["image"]), batch["label"]).mean()

            loss, gradients = equinox.filter_value_and_grad(loss_of)(model)
            updates, state = SGD.update(gradients, state)
            return equinox.apply_updates(model, updates), state, loss

        net = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
        model = equinox.nn.MLP(6, 3, 8, 1, key=jax.random.key(0))
        state = SGD.init(equinox.filter(model, equinox.is_array))
        for image, label in zip(IMAGES, LABELS, strict=True):
            one = step(net, optimizer, {"image": image, "label": label})
            model, state, other = train(model, state, {"image": image, "label": label})
        return float(one), float(other)

    bare = program()
    found, run = watched(program, tmp_path / "run", ("optax", "flax", "equinox"), save_interval=2)
    assert found == bare
    sketches = {
        (fact.model or 0, tuple(fact.data["shape"]), tuple(fact.data["into"])) for fact in run.facts("input_sketch")
    }
    assert sketches == {(0, (16, 6), ("linear",)), (1, (16, 6), ("linear",))}


def test_a_loss_of_another_kind_has_the_arrays_of_several_axes(tmp_path: Path) -> None:
    def program() -> Any:
        def loss_of(params: Any, batch: Any) -> Any:
            likelihood = jax.nn.log_softmax(_answers(params, batch[0])) * jax.nn.one_hot(batch[1], 3)
            return -likelihood.sum(1).mean()

        @jax.jit
        def step(params: Any, batch: Any) -> Any:
            gradients = jax.grad(loss_of)(params, batch)
            return {name: each - 0.1 * gradients[name] for name, each in params.items()}

        params = _parameters()
        for batch in zip(IMAGES, LABELS, strict=True):
            params = step(params, batch)
        return float(params["in"].sum())

    bare = program()
    found, run = watched(program, tmp_path / "run", save_interval=2)
    assert found == bare
    assert {shape for _, shape, _ in _paths(run)} == {(16, 6)}


def test_an_evaluation_has_the_batch_of_its_network(tmp_path: Path) -> None:
    def program() -> Any:
        @jax.jit
        def step(params: Any, state: Any, batch: Any) -> Any:
            loss, gradients = jax.value_and_grad(_loss)(params, batch["image"], batch["label"])
            return *_updated(params, state, gradients), loss

        @jax.jit
        def evaluate(params: Any, batch: Any) -> Any:
            return _loss(params, batch["image"], batch["label"])

        params = _parameters()
        state = SGD.init(params)
        batches = [{"image": image, "label": label} for image, label in zip(IMAGES, LABELS, strict=True)]
        for batch in batches[:4]:
            params, state, _ = step(params, state, batch)
        return [float(evaluate(params, batch)) for batch in (batches[0], batches[5])]

    bare = program()
    found, run = watched(program, tmp_path / "run", save_interval=1)
    assert found == bare
    assert run.scalars("rows_seen_in_training", mode="eval")[1].tolist() == [1.0, 0.0]
