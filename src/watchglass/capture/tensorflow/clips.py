"""Functions of TensorFlow by which scripts clip gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from watchglass.records import facts

_BY_NORM, _BY_VALUE = "clip_by_norm", "clip_by_value"
#: Those that are observed, by name: their arguments in order.
CLIPS = {
    "clip_by_global_norm": ("gradients", "clip_norm"),
    _BY_NORM: ("gradients", "clip_norm"),
    _BY_VALUE: ("gradients", "clip_value_min", "clip_value_max"),
}


class ClippedGradients(NamedTuple):
    """A call of such a function.

    Attributes:
        clip: What it does.
        given: What it got.
        returned: What it has made of that.
        norm: The norm of all that it got; None where it does not return one.
    """

    clip: facts.Clip
    given: list[Any]
    returned: list[Any]
    norm: Any

    def changed(self, change: Callable[[Any], Any]) -> ClippedGradients:
        """The same with other tensors."""
        norm = None if self.norm is None else change(self.norm)
        return self._replace(given=change(self.given), returned=change(self.returned), norm=norm)


def clipped(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> ClippedGradients:
    """What a call of one of these functions was."""
    given = dict(zip(CLIPS[name], args, strict=False)) | dict(kwargs)
    tensors = next((given[each] for each in ("gradients", "t_list", "t", "values") if each in given), None)
    limit = _number(given.get("clip_norm"))
    norm = None
    if name == _BY_VALUE:
        ends = _number(given.get("clip_value_min")), _number(given.get("clip_value_max"))
        clip = facts.Clip(name, clip_value=None if None in ends else max(map(abs, filter(None, ends)), default=0.0))
    elif name == _BY_NORM:
        clip = facts.Clip(name, max_norm=limit, norm_type=2.0, norm_of="each variable")
    else:
        result, norm = result
        clip = facts.Clip(name, max_norm=limit, norm_type=2.0)
    return ClippedGradients(clip, tf.nest.flatten(tensors), tf.nest.flatten(result), norm)


def _number(limit: Any) -> float | None:
    """A limit that is no tensor: a device might have to be waited for."""
    return float(limit) if isinstance(limit, (int, float)) else None
