"""How histograms lie in the columns of a statistics batch: gaps between keys and counts, split into planes of bytes.

Nearly all gaps are 1 and high bytes of counts are mostly 0, so that as planes of their own they compress to almost
nothing; the low bytes of counts are close to random and stay as they are. docs/run-format.md compares the sizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError, InvalidValueError
from watchglass.stats import Histograms
from watchglass.store.encoding.arrow_columns import arrow_array, as_array

#: Column of the bins: a list of structs of unsigned bytes.
BINS = "histogram_bins"
#: Columns with one number per row, and their dtypes.
FLAT = (("histogram_seen", np.uint64), ("histogram_first", np.int16))
NAMES = (*(name for name, _ in FLAT), BINS)

#: Most bins of one batch: decoding takes some 40 bytes for each.
MAX_BINS = 1 << 23

#: Largest key in magnitude: of the largest float64.
_MAX_KEY = 2 * (1023 + 1075) + 1
_MAX_COUNT = 1 << 53
_GAPS, _COUNTS = ("gap", "gap_1"), tuple(f"count_{plane}" for plane in range(8))


def encode(histograms: Histograms, rows: int) -> dict[str, Any]:
    """The columns of histograms, by name.

    Raises:
        InvalidValueError: They are not ``rows`` many, or have more than :data:`MAX_BINS` bins.
    """
    import pyarrow as pa

    if len(histograms) != rows:
        raise InvalidValueError(f"{rows} rows of statistics must have as many histograms but got {len(histograms)}")
    if len(histograms.keys) > MAX_BINS:
        raise InvalidValueError(
            f"a batch must have at most {MAX_BINS} bins but got {len(histograms.keys)}; write fewer rows at a time"
        )
    filled = np.flatnonzero(np.diff(histograms.offsets))
    begins = histograms.offsets[filled]
    first = np.zeros(rows, np.int16)
    first[filled] = histograms.keys[begins]
    gaps = np.diff(histograms.keys, prepend=np.int16(0)).view(np.uint16)
    gaps[begins] = 0
    planes = _planes(gaps, _GAPS) | _planes(histograms.counts, _COUNTS)
    bins = pa.StructArray.from_arrays([arrow_array(plane) for plane in planes.values()], names=list(planes))
    offsets = arrow_array(histograms.offsets.astype(np.int32))
    return {
        "histogram_seen": np.asarray(histograms.seen, np.uint64), "histogram_first": first,
        BINS: pa.ListArray.from_arrays(offsets, bins),
    }  # fmt: skip


def decode(seen: NDArray[np.uint64], first: NDArray[np.int16], chunks: list[Any]) -> Histograms:
    """Histograms from their columns.

    Args:
        seen: u64[n].
        first: int16[n].
        chunks: The list arrays of the column of bins, together of n rows.

    Raises:
        DamagedDataError: They cannot be what :func:`encode` gave.
    """
    sizes, gaps, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for chunk in chunks:
        lengths, planes = _bins(chunk)
        sizes.append(lengths)
        gaps.append(_joined(planes, _GAPS).astype(np.int64))
        counts.append(_joined(planes, _COUNTS))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
    keys = _keys(first, offsets, np.concatenate(gaps))
    found = Histograms(seen, offsets, keys.astype(np.int16), np.concatenate(counts))
    _check(found, keys)
    return found


def check_histograms(histograms: Histograms) -> None:
    """Refuse what no histogram can be: keys that do not rise, impossible counts, more counted than seen.

    Raises:
        DamagedDataError: They are not sound.
    """
    _check(histograms, histograms.keys.astype(np.int64))


def _planes(numbers: NDArray[Any], names: tuple[str, ...]) -> dict[str, NDArray[np.uint8]]:
    """The planes of unsigned integers, as columns."""
    return dict(zip(names, planes_of(numbers), strict=False))


def planes_of(numbers: NDArray[Any]) -> list[NDArray[np.uint8]]:
    """The bytes of unsigned integers, lowest first; those behind the last that is ever set are omitted."""
    largest = int(numbers.max()) if len(numbers) else 0
    needed = max(1, (largest.bit_length() + 7) // 8)
    table = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(-1, numbers.itemsize)
    return [np.ascontiguousarray(table[:, plane]) for plane in range(needed)]


def _joined(planes: dict[str, NDArray[np.uint8]], names: tuple[str, ...]) -> NDArray[np.uint64]:
    """The integers whose bytes are the planes; planes that are not there are 0."""
    number = planes[names[0]].astype(np.uint64)
    for shift, name in enumerate(names[1:], 1):
        if name in planes:
            number |= planes[name].astype(np.uint64) << np.uint64(8 * shift)
    return number


def _bins(chunk: Any) -> tuple[NDArray[np.int64], dict[str, NDArray[np.uint8]]]:
    """Numbers of bins, int64[rows], and the planes of all bins. Offsets are foreign: nothing follows them unchecked."""
    import pyarrow as pa

    kind = chunk.type
    sound = pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)
    if not sound or chunk.null_count or chunk.values.null_count or chunk.offset:
        raise DamagedDataError(f"histograms must be lists of structs without nulls but are {str(kind)[:80]}")
    values = chunk.values
    offsets: NDArray[np.int64] = np.zeros(1, np.int64)
    if len(chunk):
        offsets = as_array(pa.chunked_array([chunk.offsets])).astype(np.int64)
    sizes = np.diff(offsets)
    if offsets[0] != 0 or (sizes < 0).any() or offsets[-1] != len(values):
        raise DamagedDataError("the offsets of histograms do not fit their bins")
    if len(values) > MAX_BINS:
        raise DamagedDataError(f"histograms of one batch have {len(values)} bins; at most {MAX_BINS} are read")
    planes: dict[str, NDArray[np.uint8]] = {}
    for name in (*_GAPS, *_COUNTS):
        index = kind.value_type.get_field_index(name)
        if index < 0:
            continue
        plane = values.field(index)
        if plane.type != pa.uint8() or plane.null_count or len(plane) != len(values):
            raise DamagedDataError(f"the field {name!r} of histograms must be unsigned bytes but is {plane.type}")
        planes[name] = as_array(pa.chunked_array([plane]))
    if _GAPS[0] not in planes or _COUNTS[0] not in planes:
        raise DamagedDataError("histograms lack their gaps or counts")
    return sizes, planes


def _keys(first: NDArray[np.int16], offsets: NDArray[np.int64], gaps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Keys from the gaps between them; each row begins with its first key."""
    sizes = np.diff(offsets)
    if len(first) != len(sizes):
        raise DamagedDataError(f"{len(first)} rows cannot have {len(sizes)} histograms")
    running = np.cumsum(gaps)
    filled = sizes > 0
    begins = offsets[:-1][filled]
    if gaps[begins].any():
        raise DamagedDataError("the first bin of a histogram has a gap before it")
    return np.asarray(running + np.repeat(first[filled] - running[begins], sizes[filled]))


def _check(found: Histograms, keys: NDArray[np.int64]) -> None:
    """All readers of histograms may rely on this."""
    sizes = np.diff(found.offsets)
    rising = np.ones(len(keys), bool)
    rising[1:] = keys[1:] > keys[:-1]
    filled = sizes > 0
    rising[found.offsets[:-1][filled]] = True
    magnitudes = np.abs(keys)
    if not rising.all() or (len(keys) and (magnitudes.min() < 2 or magnitudes.max() > _MAX_KEY)):
        raise DamagedDataError("the keys of a histogram do not rise or are those of no number")
    if len(keys) and (found.counts.min() < 1 or found.counts.max() > _MAX_COUNT):
        raise DamagedDataError("a bin of a histogram has an impossible count")
    total = np.zeros(len(found))
    total[filled] = np.add.reduceat(found.counts.astype(np.float64), found.offsets[:-1][filled]) if len(keys) else 0
    if (total > found.seen).any():
        raise DamagedDataError("a histogram counts more elements than it has seen")
    if len(found) and found.seen.max() >= 1 << 63:  # tables have no room for it
        raise DamagedDataError("a histogram has seen an impossible number of elements")
