"""Tensors and variables of TensorFlow: read in the recorder's thread, as what they were when they were given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from watchglass.capture import Arrays, Hook
from watchglass.capture.arrays import Read, arrays_of, summaries
from watchglass.capture.planning.cost import Cost
from watchglass.run import open_run

pytestmark = [pytest.mark.own_process, pytest.mark.slow]


@pytest.fixture(scope="module")
def tf() -> Any:
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    return pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


@pytest.fixture
def arrays(tf: Any) -> Arrays:
    return arrays_of(tf.constant(0.0))


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int32", "bool", "complex64", "float8_e4m3fn", "float8_e5m2"]
)
def test_statistics_are_those_of_the_numbers(tf: Any, arrays: Arrays, dtype: str) -> None:
    numbers = np.array([[0.5, -2.0, 0.0], [1.0, 4.0, -0.25]])
    cast = getattr(tf.dtypes, dtype, None) or getattr(tf.dtypes.experimental, dtype)
    tensor = tf.cast(tf.constant(numbers), cast)
    found, histograms = arrays.statistics(Read([arrays.values(tensor)], None, None, True, 1), Cost.__new__(Cost))
    expected = np.array(numbers, bool if dtype == "bool" else np.int32 if dtype == "int32" else np.float64)
    expected = np.abs(expected) if dtype == "complex64" else expected
    rows, _ = summaries(Read([arrays_of(expected).take(expected)], None, None, True, 1))
    np.testing.assert_allclose(found.resolve(), rows, rtol=1e-6)
    assert histograms.resolve() is not None
    assert arrays.describe(tensor) == ((2, 3), dtype, "cpu", "local")


def test_a_variable_is_read_as_it_was(tf: Any, arrays: Arrays) -> None:
    table = tf.Variable(np.ones((1000, 8), np.float32))
    updates = [
        lambda: table.assign(table * 2),
        lambda: table.assign_sub(tf.ones_like(table)),
        lambda: table[3].assign(tf.zeros(8)),
        lambda: table.scatter_sub(tf.IndexedSlices(tf.ones((1, 8)), tf.constant([3]))),
        lambda: tf.raw_ops.ResourceApplyGradientDescent(var=table.handle, alpha=0.1, delta=tf.ones_like(table)),
        tf.function(lambda: table.assign_add(tf.ones_like(table)), jit_compile=True),
    ]
    for update in updates:
        expected = table.numpy().copy()
        kept = arrays.take(arrays.values(table))
        old = arrays.copy(table)
        update()
        assert not np.array_equal(table.numpy(), expected)
        np.testing.assert_array_equal(kept.numbers(), expected)
        np.testing.assert_array_equal(old.numpy(), expected)


def test_reading_a_variable_leaves_no_trace_on_a_tape(tf: Any, arrays: Arrays) -> None:
    read, used = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(used**2)
        arrays.take(arrays.values(read)).numbers()
        arrays.copy(read, stride=2)
    assert [each.ref() for each in tape.watched_variables()] == [used.ref()]
    assert tape.gradient(loss, read) is None


def test_a_gradient_of_rows_is_the_whole_gradient(tf: Any, arrays: Arrays) -> None:
    table = tf.Variable(np.arange(12.0).reshape(4, 3))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [2, 0, 2]) * [[1.0], [2.0], [3.0]])
    gradient = tape.gradient(loss, table)
    assert type(gradient) is tf.IndexedSlices
    assert arrays.describe(gradient).shape == (4, 3)
    np.testing.assert_array_equal(arrays.take(gradient).numbers(), tf.convert_to_tensor(gradient).numpy())
    np.testing.assert_array_equal(arrays.take(gradient, np.array([0, 3, 7])).numbers(), [2.0, 0.0, 4.0])


def test_elements_and_strides(tf: Any, arrays: Arrays) -> None:
    tensor = tf.reshape(tf.range(20.0), (4, 5))
    np.testing.assert_array_equal(arrays.take(tensor, np.array([7, 1])).numbers(), [7.0, 1.0])
    np.testing.assert_array_equal(arrays.copy(tensor, stride=8).numpy(), [0.0, 8.0, 16.0])


def test_a_script_saves_tensors_and_is_told_which_have_no_values(
    tf: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Hook(tmp_path / "run", strict=True, save_interval=1, reductions=["l2"]) as hook:

        @tf.function
        def inside(value: Any) -> Any:
            hook.save_tensor("inside", value)
            return value + 1

        with hook.step("train"):
            hook.save_tensor("eager", tf.constant([3.0, 4.0]))
            hook.save_tensor("variable", tf.Variable([1.0, -1.0], dtype=tf.bfloat16))
            hook.save_tensor("words", tf.constant(["a"]))
            hook.save_scalar("loss", tf.constant(0.5))
            assert inside(tf.constant(1.0)).numpy() == 2.0
    run = open_run(tmp_path / "run")
    assert sorted(run.tensor_names()) == ["eager", "loss", "variable"]
    assert run.tensor("eager").reduction(0, "l2") == 5.0
    assert run.tensor("loss").value(0) == 0.5
    assert "'words' is not recorded: save_tensor needs an array of numbers but got <tf.Tensor" in caplog.text
    assert "'inside' is not recorded: save_tensor needs an array of numbers but got <tf.Tensor" in caplog.text
