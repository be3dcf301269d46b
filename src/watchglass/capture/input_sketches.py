"""Samples of input tensors: the recorder's thread makes a hash and a sketch of them.

Which elements are taken depends on the number of elements alone, so equal tensors give equal samples whatever their
strides, device and address. They are runs of neighbours spread over the whole tensor, their starts scattered within
equal parts: no period of the data (image rows, channels) can hide from all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.record import Readback

#: Runs, and elements of a run. Smaller tensors are taken whole.
_RUNS, _RUN = 256, 16
LIMIT = _RUNS * _RUN
#: Knuth's multiplier: scatters the starts without a random generator, which must not be touched.
_SCATTER = 2654435761
_MOST_CHANNELS, _MOST_COMMON = 64, 5
QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


@dataclass
class Sample:
    """Some elements of one tensor, copied.

    Attributes:
        path: Where in the model's arguments it was, ``"0"``, ``"input_ids"``.
        shape: Of the tensor.
        dtype: Its name.
        total: Elements of the tensor.
        size: Elements of the sample.
        copied: Their bytes, or a readback of these.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    total: int
    size: int
    copied: NDArray[np.uint8] | Readback

    def octets(self) -> NDArray[np.uint8]:
        """The sample's bytes; waits for a device. For the recorder's thread."""
        return self.copied if isinstance(self.copied, np.ndarray) else np.asarray(self.copied.resolve())

    def varied(self) -> int:
        """Number of elements unlike the usual one. Near zero, equal samples prove nothing."""
        if not self.size:
            return 0
        octets = self.octets()
        # Bits, not numbers: NaN is like NaN. As few comparisons as the size of an element allows.
        words = octets.view(f"u{min(8, octets.size // self.size)}").reshape(self.size, -1)
        usual = (0, self.size // 2, self.size - 1)  # one of them is, where nearly all are the same
        return min(int(np.count_nonzero((words != words[index]).any(axis=1))) for index in usual)

    def values(self) -> NDArray[np.float64] | None:
        """The elements as float64; None for dtypes that NumPy lacks."""
        octets = self.octets()
        if self.dtype == "bfloat16":
            return (octets.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        try:
            kind = np.dtype(self.dtype)
        except TypeError:
            return None
        return octets.view(kind).astype(np.float64) if kind.kind != "c" else None

    def sketch(self) -> dict[str, Any] | None:
        """A summary of the values: moments and quantiles of numbers, the most common ones of integers."""
        values = self.values()
        if values is None or not self.size:
            return None
        data: dict[str, Any] = {
            "tensor": self.path, "shape": list(self.shape), "dtype": self.dtype,
            "elements": self.total, "sampled": self.size,
        }  # fmt: skip
        finite = np.isfinite(values)
        data["nonfinite"] = int(values.size - finite.sum())
        if not finite.any():
            return data
        data["zeros"] = int((values == 0).sum())
        if self.dtype.startswith(("int", "uint", "bool")):
            return {**data, **_of_integers(values)}
        data["mean"], data["std"] = float(values[finite].mean()), float(values[finite].std())
        data["quantiles"] = [float(value) for value in np.quantile(values[finite], QUANTILES)]
        channels = self._channels(np.where(finite, values, 0.0))
        return {**data, "channels": channels} if channels else data

    def _channels(self, values: NDArray[np.float64]) -> dict[str, Any] | None:
        axis = _channel_axis(self.shape)
        if axis is None or self.shape[axis] > _MOST_CHANNELS:
            return None
        number = self.shape[axis]
        channel = np.unravel_index(positions(np.arange, self.total), self.shape)[axis]
        count = np.maximum(np.bincount(channel, minlength=number), 1)
        mean = np.bincount(channel, values, number) / count
        spread = np.bincount(channel, (values - mean[channel]) ** 2, number) / count
        return {"axis": axis, "mean": mean.tolist(), "std": np.sqrt(spread).tolist()}


def hash_of(samples: Sequence[Sample]) -> str:
    """16 hexadecimal digits over shapes, dtypes and sampled bytes."""
    digest = hashlib.blake2b(digest_size=8)
    for part in samples:
        digest.update(f"{part.path}|{part.dtype}|{part.shape}|".encode())
        digest.update(part.octets().tobytes())
    return digest.hexdigest()


def first_of_each_kind(samples: Sequence[Sample]) -> list[Sample]:
    """The first sample of floats and the first of integers."""
    floats = [taken for taken in samples if "float" in taken.dtype]
    integers = [taken for taken in samples if "int" in taken.dtype]
    return [*floats[:1], *integers[:1]]


def hashed(batches: Sequence[Sequence[Sample]]) -> dict[str, Any]:
    """Data of a ``batch`` fact about some batches. For the recorder's thread."""
    first = batches[0]
    return {
        "hashes": [hash_of(samples) for samples in batches],
        # For each batch the tensor that varies most, and of these the least: near 0, equal hashes prove nothing.
        "varied": min(max((taken.varied() for taken in samples), default=0) for samples in batches),
        "shapes": {taken.path: list(taken.shape) for taken in first},
        "sampled": sum(taken.size for taken in first),
        "elements": sum(taken.total for taken in first),
    }


def positions(arange: Any, total: int, **where: Any) -> Any:
    """Flat indices of the sampled elements of ``total``, ascending; an array of the kind that ``arange`` makes."""
    if total <= LIMIT:
        return arange(total, **where)
    part = total // _RUNS
    number = arange(_RUNS, **where)
    starts = number * part + number * _SCATTER % (part - _RUN + 1)
    return (starts[:, None] + arange(_RUN, **where)[None, :]).reshape(-1)


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """Axis of channels or features: 1 of images unless they are laid out with colours last, else the last."""
    if len(shape) < 2:
        return None
    if len(shape) < 4:
        return len(shape) - 1
    return len(shape) - 1 if shape[-1] in (1, 3, 4) and shape[1] not in (1, 3, 4) else 1


def _of_integers(values: NDArray[np.float64]) -> dict[str, Any]:
    distinct, counts = np.unique(values, return_counts=True)
    common = np.argsort(-counts, kind="stable")[:_MOST_COMMON]
    return {
        "min": int(distinct[0]), "max": int(distinct[-1]), "distinct": int(distinct.size),
        "most_common": [[int(distinct[i]), float(counts[i] / values.size)] for i in common],
    }  # fmt: skip
