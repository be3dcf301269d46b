"""Samples of input tensors: a bounded copy, from which the recorder's thread makes a hash and a sketch.

Which elements are taken depends on the number of elements alone, so equal tensors give equal samples whatever their
strides, device and address. They are runs of neighbours spread over the whole tensor, their starts scattered within
equal parts: no period of the data (image rows, channels) can hide from all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from watchglass.capture.pytorch.compiled.graphs import in_graph_capture
from watchglass.capture.pytorch.reduce import DeviceRows

#: Runs, and elements of a run. Smaller tensors are taken whole.
_RUNS, _RUN = 256, 16
LIMIT = _RUNS * _RUN
#: Knuth's multiplier: scatters the starts without a random generator, which must not be touched.
_SCATTER = 2654435761
_MOST_INDICES, _MOST_CHANNELS, _MOST_COMMON = 16, 64, 5
QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)

_indices: dict[tuple[int, torch.device], Tensor] = {}


class Sample:
    """Some elements of one tensor, copied.

    Args:
        path: Where in the model's arguments it was, ``"0"``, ``"input_ids"``.
        tensor: A dense tensor.
    """

    def __init__(self, path: str, tensor: Tensor) -> None:
        self.path = path
        self.shape = tuple(tensor.shape)
        self.dtype = str(tensor.dtype).removeprefix("torch.")
        self.total = tensor.numel()
        taken = _taken(tensor)
        self.size = taken.numel()
        if taken.is_complex():
            taken = torch.view_as_real(taken.resolve_conj()).reshape(-1)
        octets = taken.view(torch.uint8)
        # To NumPy at once: raises here, where it is caught, for what only looks like a tensor (inside torch.func).
        self._octets: Any = octets.numpy() if octets.device.type == "cpu" else DeviceRows(octets)

    def octets(self) -> NDArray[np.uint8]:
        """The sample's bytes; waits for a device. For the recorder's thread."""
        octets: NDArray[np.uint8]
        octets = self._octets.resolve() if isinstance(self._octets, DeviceRows) else self._octets
        return octets

    def varied(self) -> int:
        """How many elements are unlike the usual one. Near zero the sample tells little: equal ones mean nothing."""
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
        """What the values look like: moments and quantiles of numbers, the most common ones of integers."""
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


def sample(path: str, tensor: Tensor) -> Sample | None:
    """A sample of a tensor; None of one whose values cannot be read now."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return None
    if in_graph_capture(tensor):
        return None
    try:
        with torch.no_grad():
            return Sample(path, tensor.detach())
    except (RuntimeError, NotImplementedError, TypeError):
        return None  # inside torch.func, or a kind of tensor of somebody's own


def hash_of(samples: Sequence[Sample]) -> str:
    """16 hexadecimal digits over shapes, dtypes and sampled bytes."""
    digest = hashlib.blake2b(digest_size=8)
    for part in samples:
        digest.update(f"{part.path}|{part.dtype}|{part.shape}|".encode())
        digest.update(part.octets().tobytes())
    return digest.hexdigest()


def positions(arange: Any, total: int, **where: Any) -> Any:
    """Flat indices of the elements that are taken of ``total``, ascending; as an array of whatever ``arange`` makes."""
    if total <= LIMIT:
        return arange(total, **where)
    part = total // _RUNS
    number = arange(_RUNS, **where)
    starts = number * part + number * _SCATTER % (part - _RUN + 1)
    return (starts[:, None] + arange(_RUN, **where)[None, :]).reshape(-1)


def _taken(tensor: Tensor) -> Tensor:
    total = tensor.numel()
    if total <= LIMIT:
        return tensor.reshape(-1).clone()
    key = (total, tensor.device)
    index = _indices.get(key)
    if index is None:
        if len(_indices) >= _MOST_INDICES:
            _indices.clear()
        # Worked out on its device: nothing is copied there, which would wait.
        index = _indices[key] = positions(torch.arange, total, device=tensor.device)
    if tensor.is_contiguous():
        return tensor.view(-1).index_select(0, index)
    return tensor[_coordinates(index, tensor.shape)]


def _coordinates(index: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Flat indices by axis. ``torch.unravel_index`` sends the shape to the device, and waits for that."""
    found: list[Tensor] = []
    for size in reversed(shape):
        found.append(index % size)
        index = index // size
    return tuple(reversed(found))


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
