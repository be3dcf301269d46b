"""Masks that a script applies to the weights of attention after their softmax, from autograd's graph."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from watchglass.capture.pytorch.graph import nodes

#: Nodes of the graph that are read, and operations between a softmax and the product of weights and values.
_MOST_NODES, _MOST_HOPS = 4096, 16
#: Operations that hide no weight by position.
_KEEPING = ("reshape", "copy", "expand", "dropout", "nan_to_num")


@dataclass
class LaterMasks:
    """What hides weights between a softmax and the product with the values."""

    #: Masks that are above 0 where a weight is kept. Noise of dropout is among them on a CPU.
    shown: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)  #: Masks that are true where a weight is hidden.
    causal: bool = False  #: Whether the part above the diagonal was cut.


def later_masks(start: Any, softmaxes: Collection[int]) -> dict[int, LaterMasks]:
    """The masks by softmax, for each one whose way to the predictions is known.

    Args:
        start: The node of the predictions.
        softmaxes: Sequence numbers of the nodes of softmaxes. A node itself would keep the graph alive.
    """
    users, missing, found = {start: None}, set(softmaxes), {}
    walk = nodes.Walk(start, 0, None, _MOST_NODES)
    for node, _, _ in walk:
        if not missing:
            break
        number = node._sequence_nr()
        if number in missing:
            missing.discard(number)
            masks = _on_the_way(node, users)
            if masks is not None:
                found[number] = masks
        walk.into(node, None)
        for child, _ in nodes.operands(node):
            users.setdefault(child, node)
    return found


def _on_the_way(node: Any, users: dict[Any, Any]) -> LaterMasks | None:
    """Masks from the softmax to the product with the values; None where an operation between them is unknown."""
    masks, turned = LaterMasks(), False
    for _ in range(_MOST_HOPS):
        under, node = node, users[node]
        if node is None:
            return None
        name = nodes.operation_of(node).name
        if name == "bmm" or (name == "linear" and len(nodes.operands(node)) == 2):
            return masks
        if name == "transpose":
            turned = True
        elif name not in _KEEPING and (turned or not _take(node, name, under, masks)):
            return None
    return None


def _take(node: Any, name: str, under: Any, masks: LaterMasks) -> bool:
    """Add the mask of an operation; whether its effect is known."""
    operands = [child for child, _ in nodes.operands(node)]
    at = operands.index(under)
    if name == "div":
        return at == 0
    if name == "tril":
        masks.causal = masks.causal or nodes.signed(node._saved_diagonal) <= 0
        return True
    side, kept = {
        "mul": ("other" if at == 0 else "self", masks.shown),
        "masked_fill": ("mask", masks.hidden),
        "where": ("condition", masks.shown if at == 0 else masks.hidden),
    }.get(name, ("", []))
    # Two factors that both have gradients are no weights and a mask.
    mask = nodes.saved_tensor(node, side) if side and sum(each is not None for each in operands) == 1 else None
    if mask is None:
        return False
    kept.append(mask)
    return True
