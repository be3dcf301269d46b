"""Statistics of PyTorch tensors on the CPU by the native kernel, and other reductions on any device."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from watchglass.capture.deferred_values import DeferredNumbers
from watchglass.capture.initialization import Symmetry
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.device.tensor_batches import readable
from watchglass.config import environment
from watchglass.records import Reduction
from watchglass.stats import DTYPE_CODES, exact_reduction, native, numbers, pure
from watchglass.store import RawTensor

_log = logging.getLogger("watchglass")
#: Codes of the native kernel by PyTorch's dtype.
_CODES = {getattr(torch, name): code for name, code in DTYPE_CODES.items() if hasattr(torch, name)}
#: Elements of a weight, in its first rows, of which the symmetry is computed.
_MOST_ELEMENTS = 1 << 20
#: Classes and dtypes of tensors whose memory holds their values.
_PLAIN_TYPES = frozenset((Tensor, torch.nn.Parameter))
_PLAIN_DTYPES = frozenset(dtype for dtype in _CODES if not dtype.is_complex)
#: Dtypes that NumPy lacks, and those of the same size that hold their bits.
_BITS = {torch.bfloat16: torch.uint16} | {
    getattr(torch, name): torch.uint8 for name in DTYPE_CODES if name.startswith("float8") and hasattr(torch, name)
}


def version_of(tensor: Tensor) -> int:
    """How often a tensor was changed in place; -1 for one made in inference mode, which has no counter."""
    return -1 if tensor.is_inference() else tensor._version


def is_plain(tensor: Tensor) -> bool:
    """Whether the native kernel can read a tensor directly, as most: then :func:`plain` is not needed."""
    # Called for every tensor of a captured step: the most selective attributes first.
    if type(tensor) not in _PLAIN_TYPES or not tensor.is_cpu or tensor.dtype not in _PLAIN_DTYPES:
        return False
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_neg() or not tensor.is_contiguous():
        return False
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:
        return False  # inside torch.func


def plain(tensor: Tensor) -> Tensor | None:
    """A dense, strided tensor with the same values, detached; None where the values cannot be read.

    A sharded tensor becomes its local part, a sparse one its stored values, a quantised one its dequantised values.

    Raises:
        RuntimeError: The values lie where only the tensor's own class finds them, as inside ``torch.func.vmap``.
    """
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.is_meta:
        return None
    if tensor.is_nested and tensor.layout is torch.strided:
        tensor = tensor.contiguous().values()
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
    if tensor.is_quantized or type(tensor).dequantize is not Tensor.dequantize:
        # Codes with separate scales, as 8-bit optimizers keep their state.
        tensor = tensor.dequantize()
    if tensor.is_neg() or tensor.is_conj():
        # The values in memory have another sign.
        tensor = tensor.resolve_neg().resolve_conj()
    if tensor.is_cpu and tensor.numel() and not tensor.data_ptr():
        # The kernel would read from nowhere.
        raise RuntimeError(f"a {type(tensor).__name__} does not show where its values are")
    return tensor


def for_numpy(tensor: Tensor) -> Tensor:
    """The same values in a dtype that NumPy has."""
    if tensor.dtype in _CODES and tensor.dtype not in _BITS:
        return tensor
    return tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)


def summaries(
    tensors: Sequence[Tensor],
    before: Sequence[Tensor] | None = None,
    scale: Tensor | float | None = None,
    *,
    histograms: bool = True,
    seed: int = 0,
) -> tuple[Any, Any]:
    """Statistics and histograms of tensors on the CPU that have come through :func:`plain`.

    Args:
        tensors: n tensors.
        before: Their older values; then everything is of the differences.
        scale: Everything is divided by this number.
        histograms: Whether to make them.
        seed: Draws the elements that histograms of large tensors count.

    Returns:
        Rows float64[n, 11] and :class:`~watchglass.stats.Histograms` (or None).
    """
    # Kept until the kernel has returned: a copy made here must not be freed before it is read.
    pairs = [readable(tensor, None if before is None else before[index]) for index, tensor in enumerate(tensors)]
    found: tuple[Any, Any] = _kernel().summaries(
        [tensor.data_ptr() for tensor, _ in pairs],
        [tensor.numel() for tensor, _ in pairs],
        [_CODES[tensor.dtype] for tensor, _ in pairs],
        before=None if before is None else [old.data_ptr() for _, old in pairs if old is not None],
        scale=None if scale is None else float(scale),
        histograms=histograms,
        seed=seed,
    )
    return found


def share_threads() -> None:
    """Let the kernel use as many threads as PyTorch does, which rest while it runs."""
    native.set_threads(torch.get_num_threads())


@functools.cache
def _kernel() -> Any:
    return native if native.available and not environment.native_disabled() else pure


def raw(tensor_id: int, tensor: Tensor) -> RawTensor:
    """The tensor itself, copied; on its way to the host where it lives on a device."""
    tensor, name = _stored(tensor)
    if not tensor.is_cpu:
        return RawTensor(tensor_id, DeviceRows(tensor.contiguous()), name)  # type: ignore[arg-type]
    return RawTensor(tensor_id, tensor.clone(memory_format=torch.contiguous_format).numpy(), name)


def exact(tensor: Tensor, reduction: Reduction) -> Any:
    """An exact reduction of the finite elements, or a readback of it."""
    tensor, name = _stored(tensor)
    if tensor.is_cpu:
        return exact_reduction(_decoded(tensor.numpy(), name), reduction)
    rows = DeviceRows(tensor)
    return DeferredNumbers(lambda: exact_reduction(_decoded(rows.resolve(), name), reduction), rows.nbytes)


def _stored(tensor: Tensor) -> tuple[Tensor, str]:
    """The same values in a dtype that NumPy has, and ""; or their bits in one of that size, and their dtype's name."""
    if tensor.dtype not in _CODES:
        # Rare ones, as complex32 and powers of two in eight bits: all of their values are in these.
        tensor = for_numpy(tensor)
    if tensor.dtype not in _BITS:
        return tensor, ""
    # No wider than it is, since it may have to come from a device.
    return tensor.view(_BITS[tensor.dtype]), str(tensor.dtype).removeprefix("torch.")


def _decoded(array: Any, name: str) -> Any:
    return numbers(array, DTYPE_CODES[name]) if name else array


def inactive_units(tensor: Tensor, unit_axis: int) -> Any:
    """For each unit whether it is exactly zero on every element: a boolean array, or a readback of one."""
    if tensor.dtype in _BITS:
        tensor = tensor.float()
    others = [axis for axis in range(tensor.dim()) if axis != unit_axis % tensor.dim()]
    if not others:
        inactive = tensor == 0
    else:
        # Sums are several times faster than counts, and what is all zero adds up to zero; the rest is examined again.
        inactive = tensor.sum(dim=others) == 0
        if not tensor.is_cpu or inactive.any():
            inactive = tensor.abs().sum(dim=others) == 0
    return inactive.numpy() if inactive.device.type == "cpu" else DeviceRows(inactive)


def units_beyond(tensor: Tensor, unit_axis: int, low: float, high: float, share: float = 0.99) -> Any:
    """For each unit whether this share of its elements lies below ``low`` or above ``high``; as above."""
    others = [axis for axis in range(tensor.dim()) if axis != unit_axis % tensor.dim()]
    outside = ((tensor < low) | (tensor > high)).float()
    beyond = (outside.mean(dim=others) if others else outside) >= share
    return beyond.numpy() if beyond.device.type == "cpu" else DeviceRows(beyond)


def symmetry_of(weight: Tensor) -> Symmetry | None:
    """Share of rows that equal the first, whether all elements are equal, and their spread; None where unreadable."""
    try:
        return _computed(plain(weight))
    except Exception as error:  # an unusual class of weight, or out of memory: the other weights are not affected
        _log.debug("watchglass: the initialization of a weight is not recorded: %s: %s", type(error).__name__, error)
        return None


def _computed(values: Tensor | None) -> Symmetry | None:
    if values is None or not values.numel():
        return None
    # A sharded weight has only the rows of this rank.
    flat = values.reshape(values.shape[0], -1)[: max(2, _MOST_ELEMENTS // max(1, values[0].numel()))]
    same = (flat == flat[0]).all(dim=1)
    identical = same[1:].float().mean() if flat.shape[0] > 1 else same.new_zeros((), dtype=torch.float32)
    constant = (flat == flat[0, 0]).all()
    spread = (flat if flat.is_complex() else flat.float()).std(unbiased=False).real
    numbers = torch.stack([identical, constant.float(), spread.float()])
    return numbers.numpy() if numbers.is_cpu else DeviceRows(numbers)
