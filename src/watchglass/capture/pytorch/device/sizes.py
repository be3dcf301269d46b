"""Sizes of the pieces in which tensors on a device are read, and of the memory for their statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Size(NamedTuple):
    """Capacity, or required size, of a gathering of statistics: rows, rows of shares, bins."""

    rows: int
    shares: int
    bins: int


_NEW, _FULL = Size(64, 4096, 1 << 16), Size(8192, 1 << 18, 1 << 22)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSizes:
    """Sizes of pieces and buffers. The memory bounds in the docstrings of this package follow from the defaults."""

    tile: int = 4096  #: Elements that a Triton program reads together in float32.
    wide_tile: int = 2048  #: The same in float64.
    shares: int = 512  #: Most shares of a tensor: a power of two.
    plan_bytes: int = 8 << 20  #: Most bytes of read plans that are kept.
    new_gathering: Size = _NEW  #: Capacity of a new gathering; doubled where a step needs more ...
    full_gathering: Size = _FULL  #: ... up to here: 0.9 MB, 23 MB and 17 MB.
    block: int = 1 << 14  #: Elements of a block, without Triton.
    blocks: int = 1 << 6  #: Blocks that are read together.
    tensors: int = 448  #: Tensors, or pieces, that are read together.
    copied_bytes: int = 16 << 20  #: Bytes that are copied of them.


#: The default sizes.
DEFAULT_SIZES = DeviceSizes()
