"""Some elements of an array that JAX has computed for us are read by NumPy, with no operation in the training."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.own_process

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

from watchglass.capture.jax.arrays import JaxArrays  # noqa: E402

_NUMBERS = np.array([[0.5, -2.0, 3.0], [1.0, 0.0, 7.0]])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "int4", "bool"])
def test_samples_are_equal_whoever_owns_the_array(dtype: str) -> None:
    arrays, index = JaxArrays(), np.array([4, 0, 5])
    array = jnp.asarray(_NUMBERS).astype(dtype)
    of_script = arrays.take(array, index)
    with arrays.owned():
        ours = arrays.take(array, index)
    assert (ours.dtype, ours.numbers().tolist()) == (of_script.dtype, of_script.numbers().tolist())
    assert ours.numbers().tolist() == np.asarray(array.astype("float32")).reshape(-1)[index].tolist()


def test_our_array_is_read_without_an_operation() -> None:
    arrays, array = JaxArrays(), jnp.asarray(_NUMBERS)
    array.block_until_ready()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(array), "reshape", None)  # what an operation of JAX would begin with
        with pytest.raises(TypeError):
            arrays.take(array, np.array([1]))
        with arrays.owned():
            assert arrays.take(array, np.array([1])).numbers().tolist() == [-2.0]
