"""``tf.distribute.MirroredStrategy`` on two logical CPU devices: equal bits, the loss that the script joins."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from watchglass.records import facts

pytestmark = [
    pytest.mark.own_process,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]


@pytest.fixture(scope="module")
def trainings() -> Any:
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    import tensorflow as tf

    (cpu, *_) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    import tensorflow_training

    return tensorflow_training


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "in a function"])
def test_replicas_are_one_step_with_the_joined_loss(trainings: Any, tmp_path: Path, compiled: bool) -> None:
    tf = trainings.tf
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def train(training: Any, steps: int) -> None:
        data = tf.data.Dataset.from_tensor_slices((trainings.INPUTS, trainings.LABELS)).batch(64).repeat().take(steps)
        tf.random.set_seed(3)
        with strategy.scope():
            weights = tf.Variable(tf.random.normal((12, 4)) * 0.1, name="weights")

        def replica(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, inputs @ weights)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=64)
            gradient = tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, weights))
            weights.assign_sub(0.1 * gradient)
            return loss

        if compiled:
            replica = tf.function(replica)

        @tf.function
        def step(batch: Any) -> Any:
            return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica, args=batch), axis=None)

        for batch in strategy.experimental_distribute_dataset(data):
            training.losses.append(float(step(batch)))
        training.variables = [weights]

    expected = trainings.bare(train, 10)
    for every in (1, 3, 1000):
        found, run = trainings.watched(tmp_path / f"run{every}", train, 10, every)
        assert found.bits() == expected.bits()
        assert run.scalars("loss")[1].tolist() == expected.losses
        assert run.tensor("update/weights").steps() == list(range(0, 10, every))
        assert not run.facts(facts.CaptureFault)
