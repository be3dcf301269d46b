"""Masks that a script applies to the weights of attention after their softmax, from autograd's graph."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from watchglass.capture.pytorch.graph import autograd_graph as graphs

#: Nodes of the graph that are read, and operations between a softmax and the product of weights and values.
_MOST_NODES, _MOST_HOPS = 4096, 16
_PRODUCTS = ("BmmBackward", "BaddbmmBackward", "MmBackward")
#: Operations that hide no weight by position.
_KEEPING = (
    "ViewBackward", "ReshapeAliasBackward", "UnsafeViewBackward", "CloneBackward", "ToCopyBackward", "AliasBackward",
    "ExpandBackward", "SqueezeBackward", "UnsqueezeBackward", "NativeDropoutBackward", "FusedDropoutBackward",
    "NanToNumBackward",
)  # fmt: skip
_TURNING = ("TransposeBackward", "PermuteBackward", "TBackward")


@dataclass
class LaterMasks:
    """What hides weights between a softmax and the product with the values.

    Attributes:
        shown: Masks that are above 0 where a weight is kept. Noise of dropout is among them on a CPU.
        hidden: Masks that are true where a weight is hidden.
        causal: Whether the part above the diagonal was cut.
    """

    shown: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    causal: bool = False


def later_masks(start: Any, softmaxes: Collection[int]) -> dict[int, LaterMasks]:
    """The masks by softmax, for each one whose way to the predictions is known.

    Args:
        start: The node of the predictions.
        softmaxes: Sequence numbers of the nodes of softmaxes. A node itself would keep the graph alive.
    """
    users, missing, found = {start: None}, set(softmaxes), {}
    waiting = [start]
    for node in waiting:
        if not missing or len(waiting) > _MOST_NODES:
            break
        number = node._sequence_nr()
        if number in missing:
            missing.discard(number)
            masks = _on_the_way(node, users)
            if masks is not None:
                found[number] = masks
        for child, _ in node.next_functions:
            if child is not None and child not in users:
                users[child] = node
                waiting.append(child)
    return found


def _on_the_way(node: Any, users: dict[Any, Any]) -> LaterMasks | None:
    """Masks from the softmax to the product with the values; None where an operation between them is unknown."""
    masks, turned = LaterMasks(), False
    for _ in range(_MOST_HOPS):
        under, node = node, users[node]
        if node is None:
            return None
        name = node.name()
        if name.startswith(_PRODUCTS):
            return masks
        if name.startswith(_TURNING):
            turned = True
        elif not name.startswith(_KEEPING) and (turned or not _take(node, name, under, masks)):
            return None
    return None


def _take(node: Any, name: str, under: Any, masks: LaterMasks) -> bool:
    """Add the mask of an operation; whether its effect is known."""
    operands = [child for child, _ in node.next_functions]
    at = operands.index(under)
    if name.startswith("DivBackward"):
        return at == 0
    if name.startswith("TrilBackward"):
        masks.causal = masks.causal or graphs.signed(node._saved_diagonal) <= 0
        return True
    side, kept = {
        "Mul": ("other" if at == 0 else "self", masks.shown),
        "MaskedFill": ("mask", masks.hidden),
        "Where": ("condition", masks.shown if at == 0 else masks.hidden),
    }.get(name.partition("Backward")[0], ("", []))
    # Two factors that both have gradients are no weights and a mask.
    mask = graphs.saved_tensor(node, side) if side and sum(each is not None for each in operands) == 1 else None
    if mask is None:
        return False
    kept.append(mask)
    return True
