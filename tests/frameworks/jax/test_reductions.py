"""Statistics of arrays of JAX, reduced where they are: those of the native kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from frameworks.reduced_cases import DTYPES, SHAPES, compare, numbers, unusual

pytestmark = [pytest.mark.own_process, pytest.mark.slow]

jax = pytest.importorskip("jax", reason="JAX is not installed")


@pytest.fixture
def arrays() -> Any:
    from watchglass.capture.jax.arrays import JaxArrays

    return JaxArrays()


def _compare(arrays: Any, values: list[Any], before: Any = (), **more: Any) -> None:
    compare(arrays, arrays.primitives, lambda function, given: jax.jit(function)(given), values, before, **more)


def _arrays(dtype: str, factor: float = 1) -> list[Any]:
    return [jax.numpy.asarray(numbers(shape, dtype) * factor).astype(dtype) for shape in SHAPES]


@pytest.mark.parametrize("dtype", [each for each in DTYPES if each != "float64"])
def test_rows_are_those_of_the_native_kernel(arrays: Any, dtype: str) -> None:
    _compare(arrays, _arrays(dtype)[0 if dtype == "float32" else -2 :])


def test_rows_of_64_bits(arrays: Any) -> None:
    with jax.enable_x64():
        _compare(arrays, [*_arrays("float64")[-2:], *_arrays("float64", 1e200)[-1:], *_arrays("int64", 1 << 40)[-1:]])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numbers_that_break_sums(arrays: Any, dtype: str) -> None:
    _compare(arrays, [jax.numpy.asarray(values, dtype) for values in unusual()])


@pytest.mark.parametrize("dtype", ["bfloat16", "complex64"])
def test_changes_and_quotients(arrays: Any, dtype: str) -> None:
    _compare(arrays, _arrays(dtype)[-3:], _arrays(dtype, 3)[-3:])
    _compare(arrays, _arrays(dtype), _arrays(dtype, 3), most=1 << 16, scale=-8.0)


def test_a_mean_far_from_zero(arrays: Any) -> None:
    _compare(arrays, [jax.numpy.asarray(1e4 + np.random.default_rng(0).normal(size=(400, 500)), "float32")])
