"""Statistics of tensors of TensorFlow, reduced where they are: those of the native kernel."""

from __future__ import annotations

from typing import Any

import pytest

from frameworks.reduced_cases import DTYPES, SHAPES, compare, numbers, unusual

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


@pytest.fixture
def arrays() -> Any:
    from watchglass.capture.tensorflow.arrays import TensorFlowArrays

    return TensorFlowArrays()


def _compare(arrays: Any, values: list[Any], before: Any = (), **more: Any) -> None:
    compare(arrays, arrays.primitives, lambda function, given: function(given), values, before, **more)


def _tensors(dtype: str, factor: float = 1) -> list[Any]:
    kind = getattr(tf.dtypes, dtype, None) or getattr(tf.dtypes.experimental, dtype)
    return [tf.cast(tf.constant(numbers(shape, dtype) * factor), kind) for shape in SHAPES]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_those_of_the_native_kernel(arrays: Any, dtype: str) -> None:
    _compare(arrays, _tensors(dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_numbers_that_break_sums(arrays: Any, dtype: str) -> None:
    _compare(arrays, [tf.cast(tf.constant(values), dtype) for values in unusual()])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "complex64"])
def test_changes_and_quotients(arrays: Any, dtype: str) -> None:
    _compare(arrays, _tensors(dtype), _tensors(dtype, 3))
    _compare(arrays, _tensors(dtype), _tensors(dtype, 3), most=1 << 16, scale=-8.0)


@pytest.mark.parametrize("compiled", [False, True])
def test_shapes_that_only_show_when_a_function_runs(arrays: Any, compiled: bool) -> None:
    values = _tensors("float32")[-3:-1]
    open_ = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in values]

    def run(function: Any, given: list[Any]) -> Any:
        return tf.function(function, input_signature=[open_], jit_compile=compiled)(given)

    compare(arrays, arrays.primitives, run, values)
    compare(arrays, arrays.primitives, run, values, most=1 << 16)


def test_some_rows_of_a_table_count_as_the_whole(arrays: Any) -> None:
    rows = tf.IndexedSlices(tf.ones([3, 300]), tf.constant([5, 9, 5]), tf.constant([400, 300]))
    _compare(arrays, [rows])
