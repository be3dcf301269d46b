"""Reads arrays of JAX, which are immutable: a reference is enough, and the recorder's thread waits for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from watchglass.capture.arrays import ArrayInfo, Elements, NoValuesError
from watchglass.capture.compiled.reductions import SEED, Primitives, ReducingArrays
from watchglass.stats import DTYPE_CODES, RUN, sample


def _dtype(name: str) -> Any:
    return jax.dtypes.canonicalize_dtype(name)


def _drawn(array: Any) -> Any:
    index = sample(array.size, SEED)
    if index is None or array.size >= 1 << 31:
        return array.reshape(-1) if index is None else _at(array, index)
    # Runs of neighbours: only where they begin is a constant of the compiled function.
    found = jnp.asarray(index[::RUN], jnp.int32)[:, None] + jnp.arange(RUN, dtype=jnp.int32)
    return array[jnp.unravel_index(jnp.minimum(found.reshape(-1), array.size - 1), array.shape)]


def _at(array: Any, index: NDArray[np.int64]) -> Any:
    # By axis: a sharded array in one dimension would have to be gathered.
    return array[np.unravel_index(index, array.shape)] if array.ndim else array.reshape(-1)[index]


PRIMITIVES = Primitives(
    dense=jnp.asarray,
    cast=lambda array, name: array.astype(_dtype(name)),
    magnitude=jnp.abs,
    where=jnp.where,
    is_finite=jnp.isfinite,
    count=lambda array: jnp.sum(array, dtype=jnp.int32),
    least=functools.partial(jnp.min, initial=jnp.inf),
    greatest=functools.partial(jnp.max, initial=-jnp.inf),
    total=lambda array, axes: jnp.sum(array, axes if axes is None else tuple(axes)),
    stack=jnp.stack,
    # Of the array, so that a program shows whose it is.
    emptied=lambda array: jax.lax.slice_in_dim(array[None], 0, 0),
    drawn=_drawn,
    at=_at,
    units=lambda array, axis: jnp.moveaxis(array, axis, 0).reshape(array.shape[axis], -1),
)


@functools.cache
def _jitted(function: Callable[..., Any]) -> Any:
    def compute(arrays: tuple[Any, ...], settings: tuple[Any, ...]) -> Any:
        return function(PRIMITIVES, *arrays, *settings)

    return jax.jit(compute, static_argnums=1)


class JaxArrays(ReducingArrays):
    """Arrays of JAX that this process holds whole, on one device or sharded over several.

    Attributes:
        own: Whether what is read now belongs to us alone, so that the script cannot donate it.
    """

    primitives = PRIMITIVES

    def __init__(self) -> None:
        self.own = False

    @contextmanager
    def owned(self) -> Iterator[None]:
        """What is taken inside belongs to us alone."""
        self.own = True
        try:
            yield
        finally:
            self.own = False

    def is_array(self, value: object) -> bool:
        """Whether it is an array of JAX."""
        return isinstance(value, jax.Array)

    def describe(self, array: Any) -> ArrayInfo:
        """Shape, dtype and platform; the whole array also where it is sharded."""
        return ArrayInfo(tuple(array.shape), str(array.dtype), next(iter(array.devices())).platform)

    def take(self, array: Any, index: NDArray[np.int64] | None = None) -> Elements:
        """A readback: computing an array, or fetching it, is waited for in the recorder's thread."""
        if index is not None and self.own and self.on_host(array) and _is_readable(array):
            # Later, by NumPy: an operation of JAX for some elements takes a millisecond of the training thread.
            return Elements(Fetched(array, index), _bits_of(array))
        if index is not None:
            array = array.reshape(-1)[index]
        elif not self.own and not array.is_ready():
            array = array.copy()  # a script may donate its own array to its next call
        if not _is_readable(array):  # integers of 4 bits
            array = array.astype(np.float32)
        return Elements(Fetched(array), _bits_of(array))

    def values(self, array: Any) -> Any:
        """The array itself.

        Raises:
            NoValuesError: Other processes have parts of it.
            ValueError: A tracer, a random key, or donated.
        """
        if isinstance(array, jax.core.Tracer):
            raise ValueError("it is traced, not computed; use watchglass.jax.observe inside transformations of JAX")
        if not jax.dtypes.issubdtype(array.dtype, np.number) and array.dtype != np.bool_:
            raise ValueError(f"not numbers but {array.dtype}")
        if not array.is_fully_addressable:
            raise NoValuesError("other processes have parts of it; observe an array that each process has whole")
        if array.is_deleted():
            raise ValueError("it was donated to a function")
        return array

    def compute(self, function: Callable[..., Any], arrays: tuple[Any, ...], settings: tuple[Any, ...]) -> Any:
        """Queued, before a script can donate its arrays to the next call."""
        return _jitted(function)(arrays, settings)

    def copy(self, array: Any, memory: Any = None, *, stride: int = 1) -> Any:
        """The array itself: nothing changes it."""
        return array if stride == 1 else array.reshape(-1)[::stride]


def _is_readable(array: Any) -> bool:
    """Whether NumPy has the dtype, or its bits have numbers."""
    return np.dtype(array.dtype).kind != "V" or str(array.dtype) in DTYPE_CODES


def _bits_of(array: Any) -> str:
    """The dtype whose bits are read in place of numbers; empty for numbers."""
    return str(array.dtype) if np.dtype(array.dtype).kind == "V" else ""


class Fetched:
    """A readback of an array, or of its elements at some flat positions."""

    def __init__(self, array: Any, index: NDArray[np.int64] | None = None) -> None:
        self._array, self._index, self.nbytes = array, index, array.nbytes

    def resolve(self) -> NDArray[Any]:
        """The elements; of a dtype that NumPy lacks, their bits."""
        elements = np.asarray(self._array)
        if self._index is not None:
            elements = elements.reshape(-1)[self._index]
        if elements.dtype.kind == "V":
            elements = elements.view(f"u{elements.dtype.itemsize}")
        return elements
