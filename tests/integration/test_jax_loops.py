"""Loops of JAX: watched and bare trainings are the same, bit for bit, and what is recorded of them."""

from __future__ import annotations

import copy
import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import watchglass
from watchglass import Mode, Run
from watchglass.capture import FRAMEWORKS, attach, loop
from watchglass.control import Commit, Stop
from watchglass.errors import InvalidValueError, TrainingStopped
from watchglass.records import facts

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
jax = pytest.importorskip("jax", reason="JAX is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
jnp = jax.numpy

#: Losses, and whatever was trained.
Trained = tuple[list[float], Any]
NEVER = 10**6
COLLECTIONS = {"layers": True, "optimizer_variables": True}


def _data() -> tuple[Any, Any]:
    inputs = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
    return inputs, inputs[:, :3].argmax(1)


def _parameters(seed: int = 0) -> Any:
    keys = jax.random.split(jax.random.key(seed), 2)
    return [
        {"w": jax.random.normal(keys[0], (6, 8)) * 0.5, "b": jnp.zeros(8)},
        {"w": jax.random.normal(keys[1], (8, 3)) * 0.5, "b": jnp.zeros(3)},
    ]


def _logits(params: Any, inputs: Any) -> Any:
    hidden = jax.nn.relu(inputs @ params[0]["w"] + params[0]["b"])
    return hidden @ params[1]["w"] + params[1]["b"]


def _loss(params: Any, inputs: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(_logits(params, inputs), labels).mean()


def _batches(steps: int) -> Any:
    inputs, labels = _data()
    for step in range(steps):
        at = slice(step * 16 % 64, step * 16 % 64 + 16)
        yield inputs[at], labels[at]


def whole_step(steps: int, **options: Any) -> Trained:
    """One jitted function is the step, as most scripts have it."""
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(0.05, 20)))

    def step(params: Any, state: Any, inputs: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(_loss)(params, inputs, labels)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, {"loss": loss, "norm": gradients[0]["w"].std()}

    jitted, params, losses = jax.jit(step, **options), _parameters(), []
    state = tx.init(params)
    for batch in _batches(steps):
        params, state, numbers = jitted(params, state, *batch)
        losses.append(float(numbers["loss"]))
    return losses, (params, state)


def donated(steps: int) -> Trained:
    """The step may reuse the memory of parameters and state."""
    return whole_step(steps, donate_argnums=(0, 1))


def transformed(steps: int) -> Trained:
    """A checkpoint, a mapping over samples and a jitted function inside a step with a static argument."""
    tx = optax.sgd(0.1, momentum=0.9)

    @jax.jit
    def logits(params: Any, sample: Any) -> Any:
        return _logits(params, sample)

    def loss_of(params: Any, inputs: Any, labels: Any) -> Any:
        found = jax.vmap(jax.checkpoint(logits), (None, 0))(params, inputs)
        return optax.softmax_cross_entropy_with_integer_labels(found, labels).mean()

    @functools.partial(jax.jit, static_argnames="scaled")
    def step(params: Any, state: Any, inputs: Any, labels: Any, scaled: bool = False) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, inputs, labels)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss * 2 if scaled else loss

    params, losses = _parameters(), []
    state = tx.init(params)
    for batch in _batches(steps):
        params, state, loss = step(params, state, *batch, scaled=False)
        losses.append(float(loss))
    return losses, (params, state)


def accumulated(steps: int) -> Trained:
    """Micro-batches by a scan."""
    tx = optax.adamw(0.01)

    @jax.jit
    def step(params: Any, state: Any, inputs: Any, labels: Any) -> Any:
        def part(total: Any, batch: Any) -> Any:
            loss, gradients = jax.value_and_grad(_loss)(params, *batch)
            return jax.tree.map(jnp.add, total, gradients), loss

        zeros = jax.tree.map(jnp.zeros_like, params)
        parts = inputs.reshape(4, 4, 6), labels.reshape(4, 4)
        gradients, losses = jax.lax.scan(part, zeros, parts)
        updates, state = tx.update(jax.tree.map(lambda each: each / 4, gradients), state, params)
        return optax.apply_updates(params, updates), state, {"loss": losses.mean()}

    params, losses = _parameters(), []
    state = tx.init(params)
    for batch in _batches(steps):
        params, state, numbers = step(params, state, *batch)
        losses.append(float(numbers["loss"]))
    return losses, (params, state)


def apart(steps: int) -> Trained:
    """Gradients in a jitted function, the update outside of it."""
    gradients_of, tx = jax.jit(jax.value_and_grad(_loss)), optax.adam(0.01)
    params, losses = _parameters(), []
    state = tx.init(params)
    for batch in _batches(steps):
        loss, gradients = gradients_of(params, *batch)
        updates, state = tx.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    return losses, (params, state)


def by_hand(steps: int) -> Trained:
    """Nothing is jitted, and the update is written by hand."""
    params, losses = _parameters(), []
    for batch in _batches(steps):
        loss, gradients = jax.value_and_grad(_loss)(params, *batch)
        params = jax.tree.map(lambda param, gradient: param - 0.1 * gradient, params, gradients)
        losses.append(float(loss))
    return losses, params


def sharded(steps: int) -> Trained:
    """Batches lie on two devices, and so does a weight."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    columns = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "data"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    tx = optax.sgd(0.1)

    @jax.jit
    def step(params: Any, inputs: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(_loss)(params, inputs, labels)
        updates, _ = tx.update(gradients, tx.init(params), params)
        return optax.apply_updates(params, updates), loss

    params = jax.device_put(_parameters(), whole)
    params[0]["w"] = jax.device_put(params[0]["w"], columns)
    losses = []
    for inputs, labels in _batches(steps):
        params, loss = step(params, jax.device_put(inputs, rows), jax.device_put(labels, rows))
        losses.append(float(loss))
    return losses, params


def linen_state(steps: int) -> Trained:
    """A module of linen with normalization and dropout, in a TrainState."""
    linen = pytest.importorskip("flax.linen", reason="flax is not installed")
    training = pytest.importorskip("flax.training.train_state", reason="flax is not installed")

    class Net(linen.Module):  # type: ignore[name-defined,misc]
        @linen.compact
        def __call__(self, inputs: Any, train: bool) -> Any:
            hidden = linen.relu(linen.Dense(8)(inputs))
            hidden = linen.BatchNorm(use_running_average=not train)(hidden)
            return linen.Dense(3)(linen.Dropout(0.2, deterministic=not train)(hidden))

    net = Net()
    variables = net.init(jax.random.key(0), jnp.ones((1, 6)), train=False)
    state = training.TrainState.create(apply_fn=net.apply, params=variables["params"], tx=optax.adamw(0.01))

    @jax.jit
    def step(state: Any, averages: Any, inputs: Any, labels: Any, key: Any) -> Any:
        def loss_of(params: Any) -> Any:
            found, changed = state.apply_fn(
                {"params": params, "batch_stats": averages}, inputs, train=True, rngs={"dropout": key},
                mutable=["batch_stats"],
            )  # fmt: skip
            return optax.softmax_cross_entropy_with_integer_labels(found, labels).mean(), changed

        (loss, changed), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        return state.apply_gradients(grads=gradients), changed["batch_stats"], loss

    averages, losses, key = variables["batch_stats"], [], jax.random.key(1)
    for number, batch in enumerate(_batches(steps)):
        state, averages, loss = step(state, averages, *batch, jax.random.fold_in(key, number))
        losses.append(float(loss))
    return losses, (state.params, state.opt_state, averages)


def nnx_modules(steps: int) -> Trained:
    """A module of NNX, which carries its state."""
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")

    class Net(nnx.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.first, self.norm = nnx.Linear(6, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
            self.dropout, self.last = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)

        def __call__(self, inputs: Any) -> Any:
            return self.last(self.dropout(self.norm(nnx.relu(self.first(inputs)))))

    net = Net()
    optimizer = nnx.Optimizer(net, optax.adam(0.01), wrt=nnx.Param)

    @nnx.jit  # type: ignore[untyped-decorator]
    def step(net: Any, optimizer: Any, inputs: Any, labels: Any) -> Any:
        def loss_of(net: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(net(inputs), labels).mean()

        loss, gradients = nnx.value_and_grad(loss_of)(net)
        optimizer.update(net, gradients)
        return loss

    losses = [float(step(net, optimizer, *batch)) for batch in _batches(steps)]
    return losses, [nnx.state(net, nnx.Param), nnx.state(net, nnx.BatchStat)]


def equinox_layers(steps: int) -> Trained:
    """A model of Equinox, which its functions filter."""
    eqx = pytest.importorskip("equinox", reason="Equinox is not installed")
    model, tx = eqx.nn.MLP(6, 3, 8, 1, key=jax.random.key(0)), optax.adam(0.01)
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit  # type: ignore[untyped-decorator]
    def step(model: Any, state: Any, inputs: Any, labels: Any) -> Any:
        @eqx.filter_value_and_grad  # type: ignore[untyped-decorator]
        def loss_of(model: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(inputs), labels).mean()

        loss, gradients = loss_of(model)
        updates, state = tx.update(gradients, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, loss

    losses = []
    for batch in _batches(steps):
        model, state, loss = step(model, state, *batch)
        losses.append(float(loss))
    return losses, (eqx.filter(model, eqx.is_array), state)


#: Programs, and names of tensors that each is to record.
PROGRAMS: dict[Callable[[int], Trained], tuple[str, ...]] = {
    whole_step: ("0.w", "1.b", "gradient/0.w", "update/1.w"),
    donated: ("0.w", "gradient/0.w", "update/1.w"),
    transformed: ("0.w", "gradient/1.w", "update/1.b"),
    accumulated: ("0.w", "gradient/1.w", "update/1.b"),
    apart: ("0.w", "gradient/1.w", "update/1.b"),
    by_hand: ("0.w", "gradient/1.w"),
    sharded: ("0.w", "gradient/0.w", "update/0.w"),
    linen_state: ("Dense_0.kernel", "gradient/Dense_1.bias", "update/BatchNorm_0.scale", "Dense_1.output"),
    nnx_modules: ("first.kernel", "gradient/last.bias", "update/norm.scale", "last.output"),
    equinox_layers: ("layers.0.weight", "gradient/layers.1.bias", "update/layers.0.weight", "layers.1.output"),
}


def watched(program: Callable[[int], Trained], path: Path, steps: int = 12, **settings: Any) -> tuple[Trained, Run]:
    """What a program trains while it is watched, and its run."""
    with watchglass.Hook(path, strict=True, **settings) as hook:
        for name in ("jax", "optax", "flax", "equinox"):
            if FRAMEWORKS[name].drives or importlib.util.find_spec(name):
                attach(hook.port, loop(name))
        found = program(steps)
    return found, watchglass.open_run(path)


def same(one: Trained, other: Trained) -> bool:
    """Whether two trainings have the same losses and results, bit for bit."""
    leaves = [[np.asarray(leaf) for leaf in jax.tree.leaves(found[1])] for found in (one, other)]
    equal = len(leaves[0]) == len(leaves[1]) and all(map(np.array_equal, *leaves))
    return one[0] == other[0] and equal


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_watched_and_bare_trainings_are_the_same(program: Callable[[int], Trained], tmp_path: Path) -> None:
    bare = program(12)
    for interval in (NEVER, 3, 1):
        found, run = watched(program, tmp_path / str(interval), save_interval=interval, collections=COLLECTIONS)
        assert same(found, bare), interval
        steps, losses = run.scalars("loss")
        assert list(steps) == list(range(12))
        assert list(losses) == pytest.approx(bare[0])
        due = list(range(0, 12, interval))
        for name in PROGRAMS[program]:
            assert run.tensor(name).reductions("count")[0].tolist() == due, name
    assert jax.jit.__module__.startswith("jax")


def test_optimizer_schedule_and_clip_are_known(tmp_path: Path) -> None:
    _, run = watched(whole_step, tmp_path / "run", save_interval=4, collections={"optimizer_variables": True})
    rates = run.scalars("learning_rate")[1]
    assert list(rates) == pytest.approx([float(optax.cosine_decay_schedule(0.05, 20)(step)) for step in range(12)])
    (settings,) = run.facts(facts.OptimizerSettings)
    assert (settings.type, settings.groups[0]["betas"]) == ("Adam", [0.9, 0.999])
    (clip,) = run.facts(facts.Clip)
    assert (clip.function, clip.max_norm) == ("clip_by_global_norm", 1.0)
    assert {"optimizer/mu/0.w", "optimizer/nu/1.b"} <= {*run.tensor_names()}


def test_an_evaluation_is_a_step_of_its_own(tmp_path: Path) -> None:
    def evaluating(steps: int) -> Trained:
        @jax.jit
        def evaluate(params: Any, inputs: Any, labels: Any) -> Any:
            logits = _logits(params, inputs)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return {"accuracy": (logits.argmax(1) == labels).mean(), "mean": losses.mean()}

        losses, (params, state) = whole_step(steps)
        found = [evaluate(params, *_data()) for _ in range(2)]
        return [*losses, float(found[0]["mean"]), float(found[0]["accuracy"])], state

    found, run = watched(evaluating, tmp_path / "run", save_interval=4)
    (stretch,) = run.stretches(Mode.EVAL)
    assert stretch.means["loss"] == pytest.approx(found[0][-2])
    assert stretch.means["accuracy"] == pytest.approx(found[0][-1])


def test_a_scan_over_steps_makes_several_steps(tmp_path: Path) -> None:
    def scanned(steps: int) -> Trained:
        tx = optax.adam(0.01)

        @jax.jit
        def several(params: Any, state: Any, inputs: Any, labels: Any) -> Any:
            def step(carry: Any, batch: Any) -> Any:
                params, state = carry
                loss, gradients = jax.value_and_grad(_loss)(params, *batch)
                updates, state = tx.update(gradients, state, params)
                return (optax.apply_updates(params, updates), state), loss

            return jax.lax.scan(step, (params, state), (inputs, labels))

        params = _parameters()
        trained, losses = (params, tx.init(params)), list[float]()
        batches = list(_batches(steps))
        for first in range(0, steps, 4):
            parts = [np.stack(each) for each in zip(*batches[first : first + 4], strict=True)]
            trained, found = several(*trained, *parts)
            losses += found.tolist()
        return losses, trained

    bare = scanned(12)
    found, run = watched(scanned, tmp_path / "run", save_interval=3)
    assert same(found, bare)
    assert list(run.scalars("loss")[1]) == pytest.approx(bare[0])
    assert run.tensor("update/0.w").reductions("count")[0].tolist() == [3, 6, 9]


def test_steps_in_a_loop_that_hides_them_are_named_with_a_cure(tmp_path: Path) -> None:
    def hidden(steps: int) -> Trained:
        inputs, labels = _data()

        @jax.jit
        def train(params: Any) -> Any:
            def step(_: Any, params: Any) -> Any:
                gradients = jax.grad(_loss)(params, inputs, labels)
                return jax.tree.map(lambda param, gradient: param - 0.1 * gradient, params, gradients)

            return jax.lax.fori_loop(0, steps, step, params)

        return [], train(_parameters())

    bare = hidden(4)
    found, run = watched(hidden, tmp_path / "run", 4)
    assert same(found, bare)
    assert len(run.steps()) == 0
    (hiding,) = run.facts(facts.HiddenSteps.KIND)
    assert "jax.lax.scan" in hiding.source


def test_a_script_observes_values_inside_of_transformations(tmp_path: Path) -> None:
    def observing(steps: int) -> Trained:
        def loss_of(params: Any, inputs: Any, labels: Any) -> Any:
            logits = watchglass.jax.observe(jax.vmap(_seen, (None, 0))(params, inputs), "logits")
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        step = watchglass.jax.jit(jax.value_and_grad(loss_of))
        params = _parameters()
        losses = [step(params, *batch)[0].item() for batch in _batches(steps)]
        return losses, params

    bare = observing(6)  # it does nothing where nothing is watched
    found, run = watched(observing, tmp_path / "run", 6, save_interval=2)
    assert same(found, bare)
    for name in ("logits", "hidden.first"):
        assert run.tensor(name).reductions("count")[0].tolist() == [0, 2, 4]


def _seen(params: Any, sample: Any) -> Any:
    watchglass.jax.observe({"first": sample @ params[0]["w"]}, "hidden")
    return _logits(params, sample)


def test_a_stop_is_raised_between_two_steps(tmp_path: Path) -> None:
    with watchglass.Hook(tmp_path / "run", strict=True) as hook:
        for name in ("jax", "optax"):
            attach(hook.port, loop(name))

        def stopping(steps: int) -> Trained:
            found = apart(steps)
            hook.port.changes.add(Commit(1, Stop("enough")))
            return found

        stopping(4)
        with pytest.raises(TrainingStopped, match="enough"):
            apart(4)
    assert len(watchglass.open_run(tmp_path / "run").steps()) == 4


def test_a_resumed_training_goes_on_with_the_count_of_its_optimizer(tmp_path: Path) -> None:
    tx = optax.adam(0.01)

    def step(params: Any, state: Any, inputs: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(_loss)(params, inputs, labels)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    def going_on(steps: int) -> Trained:
        jitted, trained = jax.jit(step), (_parameters(), saved)
        losses = []
        for batch in _batches(steps):
            *trained, loss = jitted(*trained, *batch)
            losses.append(float(loss))
        return losses, trained

    saved = tx.init(_parameters())
    saved = going_on(5)[1][1]
    _, run = watched(going_on, tmp_path / "run", 4)
    assert list(run.scalars("loss")[0]) == [5, 6, 7, 8]


def test_windows_are_profiled_by_jax_and_change_no_bit(tmp_path: Path) -> None:
    bare = whole_step(12)
    profiled = watchglass.ProfilerConfig(enabled=True, profile_steps=("4:7",), keep_traces=True)
    with watchglass.Hook(tmp_path / "run", strict=True, save_interval=NEVER, profiler=profiled) as hook:
        attach(hook.port, loop("jax"))
        found = whole_step(12)
    assert found[0] == bare[0]
    run = watchglass.open_run(tmp_path / "run")
    (window,) = run.operators()
    assert window.steps == range(4, 7)
    assert window["PjitFunction(step)"].calls >= 3
    assert window.trace


def test_a_profiler_of_the_script_is_left_alone(tmp_path: Path) -> None:
    profiled = watchglass.ProfilerConfig(enabled=True, profile_steps=("2:4",))
    jax.profiler.start_trace(str(tmp_path / "own"))
    try:
        with watchglass.Hook(tmp_path / "run", strict=True, save_interval=NEVER, profiler=profiled) as hook:
            attach(hook.port, loop("jax"))
            whole_step(6)
    finally:
        jax.profiler.stop_trace()
    assert list((tmp_path / "own").rglob("*.xplane.pb"))
    (refused,) = watchglass.open_run(tmp_path / "run").facts("window_refused")
    assert "JAX's profiler did not start" in refused.data["reason"]


def test_a_jitted_function_is_what_jax_makes_to_the_script(tmp_path: Path) -> None:
    class Doubling:
        factor = 2

        def __init__(self, jitted: Any) -> None:
            Doubling.times = jitted

    def times(self: Any, value: Any) -> Any:
        "Multiply."
        return self.factor * value

    with watchglass.Hook(tmp_path / "run", strict=True) as hook:
        attach(hook.port, loop("jax"))
        jitted = jax.jit(times, static_argnums=0)
        assert (jitted.__name__, jitted.__doc__) == ("times", "Multiply.")
        assert Doubling(jitted).times(jnp.ones(2)).tolist() == [2, 2]  # type: ignore[attr-defined]  # it is set
        assert isinstance(jitted, jax.stages.Wrapped)
        assert type(copy.copy(jitted)).__name__ == "PjitFunction"  # and so is what is pickled
        with pytest.raises(InvalidValueError, match=r"watchglass\.jax\.jit"):
            attach(hook.port, loop("jax"), before)


before = jax.jit(lambda value: value)
