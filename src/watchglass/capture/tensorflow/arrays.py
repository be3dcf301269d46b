"""Reads TensorFlow's tensors. They are immutable: keeping one is the copy, and the recorder's thread reads it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from watchglass.capture.arrays import ArrayInfo, Elements
from watchglass.capture.compiled.reductions import SEED, Primitives, ReducingArrays
from watchglass.stats import DTYPE_CODES, RUN, SAMPLED_ABOVE, STRATA, draws

#: Dtypes that NumPy reads as bytes without a meaning, and the unsigned integers of the same size.
_BITS = {"bfloat16": np.uint16} | {name: np.uint8 for name in DTYPE_CODES if name.startswith("float8")}


def _flat(tensor: Any) -> Any:
    return tf.reshape(tensor, [-1])


def _drawn(tensor: Any) -> Any:
    """As :func:`watchglass.stats.sample` chooses them, for a number of elements that the graph may not know."""
    size = tf.size(tensor, tf.int64)
    runs = (size + RUN - 1) // RUN
    stratum = tf.where(size > SAMPLED_ABOVE, runs // STRATA, 1)
    strata = tf.range((runs + stratum - 1) // stratum)
    chosen = strata * stratum + tf.bitwise.right_shift(tf.gather(_DRAWS, strata) * stratum, 32)
    index = tf.reshape(chosen[:, None] * RUN + tf.range(RUN, dtype=tf.int64), [-1])
    return tf.gather(_flat(tensor), tf.minimum(index, size - 1))


def _units(tensor: Any, axis: int) -> Any:
    axes = [axis, *(each for each in range(len(tensor.shape)) if each != axis)]
    return tf.reshape(tf.transpose(tensor, axes), [tensor.shape[axis], -1])


_DRAWS = draws(np.arange(max(2 * STRATA, SAMPLED_ABOVE // RUN), dtype=np.uint64), SEED).astype(np.int64)
PRIMITIVES = Primitives(
    dense=tf.convert_to_tensor,
    cast=tf.cast,
    magnitude=tf.abs,
    where=tf.where,
    is_finite=tf.math.is_finite,
    # TensorFlow adds up integers of 32 bits on the host.
    count=lambda tensor: tf.reduce_sum(tf.cast(tensor, tf.int64)),
    least=tf.reduce_min,
    greatest=tf.reduce_max,
    total=tf.reduce_sum,
    stack=tf.stack,
    emptied=lambda tensor: tensor[None][:0],
    drawn=_drawn,
    at=lambda tensor, index: tf.gather(_flat(tensor), index),
    units=_units,
)


class TensorFlowArrays(ReducingArrays):
    """Tensors that a program has computed, variables, and gradients of some rows (``tf.IndexedSlices``).

    Such a gradient counts as the whole one, zero in the other rows, as frameworks give it that keep no list of rows.
    """

    primitives = PRIMITIVES

    def is_array(self, value: object) -> bool:
        """Whether it is a tensor, also a symbolic one, or a variable."""
        return isinstance(value, (tf.Tensor, tf.Variable, tf.IndexedSlices))

    def describe(self, array: Any) -> ArrayInfo:
        """Shape, dtype and device; an axis whose length is open while a graph is built counts as none."""
        place = str(getattr(array, "device", "") or "").rpartition("device:")[2].lower()
        kind, _, index = place.partition(":")
        shape = array.dense_shape if isinstance(array, tf.IndexedSlices) else array.shape
        shape = tuple(int(length or 0) for length in (shape.numpy() if tf.is_tensor(shape) else shape))
        return ArrayInfo(shape, array.dtype.name, kind if kind in ("", "cpu") else f"{kind}:{index}")

    def values(self, array: Any) -> Any:
        """The tensor; of a variable, the one that it holds now: an update makes another one as long as this is kept.

        Raises:
            ValueError: It is part of a graph that is being built, or holds no numbers.
        """
        if isinstance(array, tf.Variable):
            # Outside of the tapes of the script, and of a graph that is being built.
            with tf.init_scope():
                array = array.value()
        part = array.values if isinstance(array, tf.IndexedSlices) else array
        if tf.is_symbolic_tensor(part):
            raise ValueError("it has no values while a tf.function is traced; return it, and save the result")
        if not (part.dtype.is_floating or part.dtype.is_integer or part.dtype.is_bool or part.dtype.is_complex):
            raise ValueError("not numbers")
        return array

    def take(self, array: Any, index: NDArray[np.int64] | None = None) -> Elements:
        """A readback of the elements: no operation runs in the training thread."""
        name = array.dtype.name
        return Elements(_KeptTensor(array, index), name if name in _BITS else "")

    def compute(self, function: Callable[..., Any], arrays: tuple[Any, ...], settings: tuple[Any, ...]) -> Any:
        """Operation by operation, outside of tapes and graphs of the script."""
        with tf.init_scope():
            return function(PRIMITIVES, *arrays, *settings)

    def copy(self, array: Any, memory: Any = None, *, stride: int = 1) -> Any:
        """The tensor itself, or some of its elements."""
        array = self.values(array)
        if stride == 1 or isinstance(array, tf.IndexedSlices):
            return array if stride == 1 else None
        with tf.init_scope():
            return tf.reshape(array, [-1])[::stride]


class _KeptTensor:
    """Elements of a tensor that is kept until the recorder's thread reads them."""

    def __init__(self, tensor: Any, index: NDArray[np.int64] | None) -> None:
        self._tensor, self._index = tensor, index

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        part = self._tensor.values if isinstance(self._tensor, tf.IndexedSlices) else self._tensor
        return int(math.prod(part.shape) * part.dtype.size)

    def resolve(self) -> NDArray[Any]:
        """The elements, or their bits; waits for a device."""
        elements = _host(self._tensor)
        if self._index is not None:
            elements = elements.reshape(-1)[self._index]
        bits = _BITS.get(self._tensor.dtype.name)
        return elements if bits is None else elements.view(bits)


def _host(tensor: Any) -> NDArray[Any]:
    if not isinstance(tensor, tf.IndexedSlices):
        return np.asarray(tensor.numpy())  # of a number of a dtype that NumPy lacks, NumPy makes nothing
    values, rows = np.asarray(tensor.values), np.asarray(tensor.indices)
    whole = np.zeros(tuple(np.asarray(tensor.dense_shape)), values.dtype)
    np.add.at(whole, rows, values)
    return whole
