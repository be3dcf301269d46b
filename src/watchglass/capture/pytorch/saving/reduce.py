"""PyTorch's tensors for the table of frameworks: their values, copies of these, statistics and other reductions."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from watchglass.capture.arrays import BEYOND, NUMPY, ArrayInfo, Arrays, Elements, NoValuesError, Read, kernel
from watchglass.capture.facts.initial_weights import Symmetry
from watchglass.capture.planning.cost import Cost
from watchglass.capture.pytorch.compiled.graphs import captured
from watchglass.capture.pytorch.device.device_statistics import DeviceStatistics
from watchglass.capture.pytorch.device.readback import DeviceRows, on_host
from watchglass.capture.pytorch.device.tensor_batches import memory_order, readable
from watchglass.stats import DTYPE_CODES, native

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
    found: tuple[Any, Any] = kernel().summaries(
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


class PyTorchArrays(Arrays):
    """Tensors on any device."""

    def __init__(self) -> None:
        # By the cost that they are part of, which they must not keep alive.
        self._on_device: weakref.WeakKeyDictionary[Cost, DeviceStatistics] = weakref.WeakKeyDictionary()

    def is_array(self, value: object) -> bool:
        """Whether this is a tensor."""
        return isinstance(value, Tensor)

    def describe(self, array: Tensor) -> ArrayInfo:
        """Shape, dtype and place; of a nested tensor, which has no shape, that of all its values together."""
        shape = (() if (values := plain(array)) is None else values.shape) if array.is_nested else array.shape
        return ArrayInfo(tuple(shape), name_of(array.dtype), str(array.device), _placement(array))

    def values(self, array: Tensor) -> Tensor | None:
        """See :func:`plain`; None while what is done to tensors may become part of a CUDA graph instead."""
        if captured():
            return None
        if is_plain(array):
            return array
        values = plain(array)
        if values is None:
            raise NoValuesError(
                "nor is anything else on the meta device, where tensors have no values; give them some before "
                "training: to_empty(device=...), then load or initialize them"
            )
        return values

    def take(self, array: Tensor, index: NDArray[np.int64] | None = None) -> Elements:
        """Copies, on their way to the host where the tensor lives on a device."""
        tensor, name = array.detach(), ""
        if tensor.dtype not in _CODES:
            # Rare ones, as complex32 and powers of two in eight bits: all of their values are in these.
            tensor = tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)
        if tensor.dtype in _BITS:
            # No wider than it is, since it may have to come from a device.
            tensor, name = tensor.view(_BITS[tensor.dtype]), name_of(tensor.dtype)
        if tensor.is_cpu:
            return Elements(NUMPY.take(tensor.resolve_conj().resolve_neg().numpy(), index).array, name)
        return Elements(DeviceRows(tensor.contiguous() if index is None else picked(tensor, index)), name)

    def statistics(self, read: Read, cost: Cost) -> tuple[Any, Any]:
        """By the native kernel on the CPU, by Triton or PyTorch's operators on devices."""
        found = summaries if read.arrays[0].is_cpu else self.on_device(cost).summaries
        return found(*read[:3], histograms=read.histograms, seed=read.seed)

    def units(self, array: Tensor, axis: int, limits: tuple[float, float] | None) -> Any:
        """On the device of the tensor."""
        values = plain(array)
        if values is None or not values.numel():
            return None
        others = [each for each in range(values.dim()) if each != axis % values.dim()]
        if limits is not None:
            outside = ((values < limits[0]) | (values > limits[1])).float()
            return on_host((outside.mean(dim=others) if others else outside) >= BEYOND)
        if values.dtype in _BITS:
            values = values.float()
        if not others:
            return on_host(values == 0)
        # Sums are several times faster than counts, and what is all zero adds up to zero; the rest is examined again.
        inactive = values.sum(dim=others) == 0
        if not values.is_cpu or inactive.any():
            inactive = values.abs().sum(dim=others) == 0
        return on_host(inactive)

    def copy(self, array: Tensor, memory: Tensor | None = None, *, stride: int = 1) -> Tensor | None:
        """A copy; no sample of a tensor with gaps in memory."""
        if stride > 1:
            array = array.permute(memory_order(array))
            if not array.is_contiguous():
                return None
            array = array.view(-1)[::stride]
        return (torch.empty_like(array, requires_grad=False) if memory is None else memory).copy_(array)

    def on_device(self, cost: Cost) -> DeviceStatistics:
        """Statistics of tensors on devices; sent to the host when a step ends."""
        known = self._on_device.get(cost)
        if known is None:
            known = self._on_device[cost] = DeviceStatistics(weakref.proxy(cost))
        return known


def in_numpy(tensor: Tensor) -> bool:
    """Whether NumPy reads a tensor's own memory."""
    known = tensor.is_cpu and tensor.dtype in _CODES and tensor.dtype not in _BITS
    return known and not tensor.is_conj() and not tensor.is_neg()


#: Positions on devices that are remembered, and how many of them each may be.
_MOST_INDICES, _MOST_POSITIONS = 64, 4096
_indices: dict[tuple[int, torch.device], tuple[NDArray[np.int64], Tensor]] = {}


def picked(tensor: Tensor, index: NDArray[np.int64]) -> Tensor:
    """Copies of the elements at some flat positions, on their device."""
    key = id(index), tensor.device
    known = _indices.get(key)
    if known is None:
        if len(_indices) >= _MOST_INDICES:
            _indices.clear()
        host = torch.from_numpy(index)
        # The allocator of pinned memory reuses it only after the copy.
        host = host.pin_memory() if tensor.is_cuda else host
        known = index, host.to(tensor.device, non_blocking=True)
        if index.size <= _MOST_POSITIONS:
            _indices[key] = known
    if tensor.is_contiguous():
        return tensor.view(-1).index_select(0, known[1])
    # By axis. ``torch.unravel_index`` sends the shape to the device, and waits for that.
    at, axes = known[1], []
    for size in reversed(tensor.shape):
        axes.append(at % size)
        at = at // size
    return tensor[tuple(reversed(axes))]


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype."""
    return str(dtype).removeprefix("torch.")


def _placement(tensor: Tensor) -> str:
    """How this rank's part relates to the whole of a distributed tensor."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return "local"
    if any(placement.is_shard() for placement in placements):
        return "shard"
    return "partial" if any(placement.is_partial() for placement in placements) else "replicated"


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
    return on_host(numbers)
