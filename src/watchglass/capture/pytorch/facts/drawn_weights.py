"""Weights that still are as they were drawn at random: what a script has loaded or trained is not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.compiled.graphs import in_graph_capture
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.saving.reduce import version_of

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
#: Rows of a weight that are compared, and values of each. Of an embedding, training changes the rows that it uses.
_ROWS, _VALUES = 8, 4
_MOST_OF_A_SHAPE, _MOST = 1024, 1 << 15
#: Tensors that a script draws by methods, after which these are observed no more: data may be drawn so, too.
_MOST_BY_METHODS = 4096
#: Different values that are in the same order by no chance: of 16 one order in 10^13.
_ENOUGH = 16


class DrawnWeights:
    """A few values of each tensor with two or more axes, as they were when it was drawn.

    Values are compared, not tensors: a copy of a fresh layer is fresh too, and whatever writes to a weight or replaces
    it shows: a loader of any package, a copy through ``.data``, an update. Initializers of packages change what they
    have drawn (scale, shift, inverse of a distribution function, cut-off), but keep its order, so that is compared.

    Nothing waits for a device: values stay there until they are compared.
    """

    def __init__(self, port: Port, models: Models, leave: ExitStack) -> None:
        #: By functions of ``torch.nn.init``, since watchglass observes the process, and by methods of tensors until the
        #: first captured forward.
        self.drawn = _Samples()
        #: Of models that were made before that: what was written once, and may have been loaded through ``.data``.
        #: PyTorch counts the writes: constructors of its layers write once, what is loaded in place or trained is
        #: written again, and what is made from another tensor, as files are read, was not written at all.
        self.written_once = _Samples()
        self._by_methods = 0
        leave.callback(calls.INITIALIZED.listen(port.guard, after=self._initialized))
        self._leave_methods: Callable[[], None] | None = calls.DRAWN.listen(port.guard, after=self._drawn)
        leave.callback(self.begin_training)
        models.on_given = self._given

    def begin_training(self) -> None:
        """Models are made: from now on methods of tensors are not observed, which draw noise in each step."""
        leave, self._leave_methods = self._leave_methods, None
        if leave is not None:
            leave()

    def _initialized(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        tensor = args[0] if args else kwargs.get("tensor")
        if isinstance(tensor, Tensor):
            self.drawn.add(tensor)

    def _drawn(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._by_methods += 1
        if self._by_methods > _MOST_BY_METHODS:
            self.begin_training()
        else:
            self._initialized(args, kwargs, result)

    def _given(self, root: nn.Module) -> None:
        for weight in root.parameters():
            if _is_readable(weight) and version_of(weight) == 1:
                self.written_once.add(weight)


class _Samples:
    """A few values of each of many tensors, by shape."""

    def __init__(self) -> None:
        # As bytes of float32, those of a device as tensors there.
        self._values: dict[torch.Size, deque[bytes | Tensor]] = {}
        self._kept = 0
        # A model that is frozen has each of its weights compared with all of its shape.
        self._known: dict[tuple[torch.Size, torch.dtype], list[Callable[[], NDArray[np.float32]]]] = {}

    def add(self, tensor: Tensor) -> None:
        if not _is_readable(tensor):
            return
        if self._kept >= _MOST:
            self._values.clear()
            self._kept = 0
        self._known.clear()
        self._kept += 1
        few = _few(tensor)
        kept = few.float().numpy().tobytes() if few.is_cpu else few.clone()
        self._values.setdefault(tensor.shape, deque(maxlen=_MOST_OF_A_SHAPE)).append(kept)

    def comparison(self, tensor: Tensor) -> Callable[[], bool] | None:
        """Compares them with the values that this tensor has now, which the script may have converted since.

        Returns:
            Whether one of them is alike, for the recorder's thread; None if there is none of its shape.
        """
        if tensor.shape not in self._values or not _is_readable(tensor):
            return None
        key = (tensor.shape, tensor.dtype)
        if key not in self._known:
            self._known[key] = list(self._stacked(*key))
        known, now = self._known[key], _host(_few(tensor).clone())
        return lambda: any(is_alike(drawn(), now()) for drawn in known)

    def _stacked(self, shape: torch.Size, dtype: torch.dtype) -> Iterator[Callable[[], NDArray[np.float32]]]:
        """The values of all tensors of a shape, as a conversion to this type would make them."""
        values = self._values[shape]
        if host := [each for each in values if isinstance(each, bytes)]:
            octets = bytearray().join(host)
            yield _host(torch.frombuffer(octets, dtype=torch.float32).view(len(host), -1).to(dtype))
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for each in values:
            if isinstance(each, Tensor):
                alike.setdefault((each.device, each.dtype), []).append(each)
        for rows in alike.values():
            yield _host(torch.stack(rows).to(dtype))


def is_alike(drawn: NDArray[np.float32], now: NDArray[np.float32]) -> bool:
    """Whether values are equal to some that were drawn, or made of them without a change of their order.

    Args:
        drawn: The values of several tensors, float32[k, n].
        now: Those of one, float32[n].
    """
    if (drawn == now).all(axis=1).any():
        return True
    order = np.argsort(now, kind="stable")
    # Conversions and cut-offs make values equal that were not.
    tied = np.diff(now[order]) == 0
    rises = np.diff(drawn[:, order], axis=1)
    kept = ((rises >= 0) | tied).all(axis=1)
    different = np.count_nonzero((rises > 0) & ~tied, axis=1) + 1
    return bool((kept & (different >= _ENOUGH)).any())


def _host(values: Tensor) -> Callable[[], NDArray[np.float32]]:
    """Copies values without a wait; returns what gets them."""
    values = values.float()
    if values.is_cpu:
        array = values.numpy()
        return lambda: array
    return DeviceRows(values).resolve


def _is_readable(tensor: Tensor) -> bool:
    """Whether this is a weight whose values can be read: no shard, no quantized one, none without values."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.dtype not in _DTYPES or tensor.dim() < 2:
        return False
    try:
        return tensor.numel() > 0 and tensor.data_ptr() != 0 and not in_graph_capture(tensor)
    except RuntimeError:
        return False  # inside torch.func


def _few(tensor: Tensor) -> Tensor:
    # Padding has the first row.
    apart = max(1, tensor.shape[0] // _ROWS)
    rows = tensor.detach()[apart // 2 :: apart][:_ROWS]
    return rows.flatten(1)[:, :_VALUES].flatten()
