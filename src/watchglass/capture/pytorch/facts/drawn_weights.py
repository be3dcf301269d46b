"""Weights that still are as an initializer has drawn them: what a script has loaded or trained is not."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from watchglass.capture.hook import Hook
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.compiled.graphs import in_graph_capture
from watchglass.capture.pytorch.models import Models
from watchglass.capture.pytorch.reduce import version_of

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
#: Rows of a weight that are compared, and values of each. Of an embedding, training changes the rows that it uses.
_ROWS, _VALUES = 8, 4
_MOST_OF_A_SHAPE = 1024
_MOST_SHAPES = 512


class DrawnWeights:
    """A few values of each tensor with two or more axes, as they were when it was drawn.

    Values are compared, not tensors: a copy of a fresh layer is fresh too, and whatever writes to a weight or replaces
    it shows: a loader of any package, a copy through ``.data``, an update.
    """

    def __init__(self, hook: Hook, models: Models, leave: ExitStack) -> None:
        #: By functions of ``torch.nn.init``, since watchglass observes the process.
        self.drawn = _Samples()
        #: Of models that were made before that: what was written once, and may have been loaded through ``.data``.
        #: PyTorch counts the writes: constructors of its layers write once, what is loaded in place or trained is
        #: written again, and what is made from another tensor, as files are read, was not written at all.
        self.written_once = _Samples()
        leave.callback(calls.INITIALIZED.listen(hook.guard, after=self._initialized))
        models.on_given = self._given

    def _initialized(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        tensor = args[0] if args else kwargs.get("tensor")
        if isinstance(tensor, Tensor):
            self.drawn.add(tensor)

    def _given(self, root: nn.Module) -> None:
        for weight in root.parameters():
            if _is_readable(weight) and version_of(weight) == 1:
                self.written_once.add(weight)


class _Samples:
    """A few values of each of many tensors, by shape."""

    def __init__(self) -> None:
        # As bytes of float64: a model that is frozen has each of its weights compared with all of its shape.
        self._values: dict[torch.Size, deque[bytes]] = {}

    def add(self, tensor: Tensor) -> None:
        if _is_readable(tensor):
            if len(self._values) >= _MOST_SHAPES:
                self._values.clear()
            values = _few(tensor).cpu().double().numpy().tobytes()
            self._values.setdefault(tensor.shape, deque(maxlen=_MOST_OF_A_SHAPE)).append(values)

    def __contains__(self, tensor: Tensor) -> bool:
        """Whether one of them had the values of this tensor, which the script may have converted since."""
        values = self._values.get(tensor.shape)
        if not values or not _is_readable(tensor):
            return False
        known = torch.frombuffer(bytearray().join(values), dtype=torch.float64).view(len(values), -1).to(tensor.dtype)
        return bool((known == _few(tensor).cpu()).all(1).any())


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
