"""JAX: functions that are jitted, and gradients; the only package that imports it, with those of its libraries."""

from watchglass.capture.jax.arrays import JaxArrays as JaxArrays
from watchglass.capture.jax.loop import JaxLoop as JaxLoop
