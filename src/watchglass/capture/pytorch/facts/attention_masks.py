"""Which positions attention sees, from its arguments, its masks, or its softmax and masks that follow it."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from watchglass.capture.arrays import Elements
from watchglass.capture.port import Port
from watchglass.capture.pytorch.facts.copies import Copies, is_readable
from watchglass.capture.pytorch.graph import nodes
from watchglass.capture.pytorch.public_calls import ATTENTION, MULTI_HEAD_ATTENTION, SOFTMAX
from watchglass.capture.pytorch.tensors.attention import logits_of, named_arguments
from watchglass.records import facts

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


#: Calls of attention that are noted, and sequences of which masks are read.
_MOST_CALLS, _SEQUENCES = 256, 4
#: What is added to a logit that is not to be seen is below this: exp(-1000) is 0 in every dtype.
_HIDDEN = -1000.0


@dataclass
class _Attention:
    """A call of attention, and what its masks show: before the softmax, and after it."""

    fact: facts.SeenByAttention
    seen: Elements | None = None
    later: Sequence[Elements] = ()


class SeenPositions:
    """Notes each call of attention in one forward, with how many of its positions see the next one.

    Args:
        port: The port of the run.
        copies: Where what masks show is added.
        carefully: Calls a function that may fail at forms of attention that are unknown here.
    """

    def __init__(self, port: Port, copies: Copies, carefully: Callable[[Callable[[], None]], None]) -> None:
        self._copies = copies
        self._carefully = carefully
        self._calls: list[_Attention] = []
        # Of calls in the open, by the sequence number of the node of their softmax.
        self._softmaxes: dict[int, _Attention] = {}
        guard, guarded = port.guard, port.guarded
        self._listening = [
            ATTENTION.listen(guard, after=guarded(self._attended)),
            MULTI_HEAD_ATTENTION.listen(guard, after=guarded(self._heads)),
            SOFTMAX.listen(guard, after=guarded(self._softmax)),
        ]

    def close(self) -> None:
        """The forward has ended: unwrap the functions."""
        while self._listening:
            self._listening.pop()()

    def follow(self, predictions: Tensor) -> None:
        """Predictions were computed: note the masks that attention in the open applies after its softmax."""
        found = later_masks(predictions.grad_fn, self._softmaxes) if self._softmaxes else {}
        for number, noted in self._softmaxes.items():
            masks = found.get(number)
            if masks is None or masks.causal:
                noted.fact, noted.seen = replace(noted.fact, next=None if masks is None else 0.0), None
            elif noted.fact.queries == noted.fact.keys > 1:
                noted.later = self._places(noted.fact.queries, masks)

    def _places(self, length: int, masks: LaterMasks) -> list[Elements]:
        """Copies of what masks after the softmax show, and of their largest values."""
        places = []
        for limit, several in ((0, masks.shown), (None, masks.hidden)):
            # Others are a scale, or hide the same keys from all.
            for mask in (each for each in several if each.dim() > 1 and is_readable(each)):
                mask = _some(mask.detach())
                places.append(self._copies.add(torch.stack((*_seen(mask, limit, length), mask.max().float()))))
        return places

    def seen(self) -> tuple[facts.SeenByAttention, ...]:
        """What it saw; for the recorder's thread."""
        numbers = Counter(map(_of_attention, self._calls))
        return tuple(replace(fact, calls=number) for fact, number in numbers.items())

    def _attended(self, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if not MULTI_HEAD_ATTENTION.nest.inside:  # what that calls is no other attention
            self._carefully(functools.partial(self._fused, named_arguments(arguments, kwargs)))

    def _fused(self, given: dict[str, Any]) -> None:
        causal = bool(given.get("is_causal"))
        limit = _HIDDEN if _is_float(given.get("attn_mask")) else 0
        self._note(
            given["query"].shape[-2], given["key"].shape[-2], given.get("attn_mask"), limit, causal=causal, itself=None
        )

    def _heads(self, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = dict(zip(_names_of_heads(), arguments, strict=False)) | kwargs
        self._carefully(functools.partial(self._by_heads, given))

    def _by_heads(self, given: dict[str, Any]) -> None:
        query, key, mask = given["query"], given["key"], given.get("attn_mask")
        # True is what is not to be seen here.
        self._note(
            query.shape[0], key.shape[0], mask, _HIDDEN if _is_float(mask) else None, causal=False, itself=query is key
        )

    def _softmax(self, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        other = isinstance(result, Tensor) and not MULTI_HEAD_ATTENTION.nest.inside
        logits = logits_of(arguments, kwargs) if other else None
        if logits is not None:
            queries, keys = logits.shape[-2:]
            self._carefully(functools.partial(self._note_weights, queries, keys, result))

    def _note_weights(self, queries: int, keys: int, weights: Tensor) -> None:
        noted = self._note(queries, keys, weights, 0, causal=False, itself=None)
        if noted is not None and weights.grad_fn is not None:
            self._softmaxes[weights.grad_fn._sequence_nr()] = noted

    def _note(
        self, queries: int, keys: int, mask: Tensor | None, limit: float | None, *, causal: bool, itself: bool | None
    ) -> _Attention | None:
        """Attention was computed; returns what is noted of it, if anything.

        Args:
            queries: Positions that look.
            keys: Positions that are looked at.
            mask: By query and key; None where none was given.
            limit: A query sees a key where the mask is above it; None where it sees what the mask does not name.
            causal: Whether no query sees a later key, without a mask.
            itself: Whether queries and keys come from one tensor; None where that is not known.
        """
        if len(self._calls) >= _MOST_CALLS:
            return None
        noted = _Attention(facts.SeenByAttention(queries, keys, itself, 0.0 if causal else 1.0))
        if queries == keys > 1 and mask is not None and mask.dim() > 1:
            if not is_readable(mask):
                return None
            noted.seen = self._copies.add(_seen(mask.detach(), limit, queries))
        self._calls.append(noted)
        return noted


def _of_attention(noted: _Attention) -> facts.SeenByAttention:
    share = noted.fact.next
    if noted.seen is not None:
        seen, itself = noted.seen.received()
        share = float(seen / itself) if itself else 0.0
    for seen, itself, largest in (each.received() for each in noted.later):
        kept = float(seen / itself) if itself else 0.0
        # Noise of dropout is above 1 where it keeps a weight, and hides no position altogether.
        if share is not None and (kept == 0 or largest <= 1):
            share = min(share, kept)
    return replace(noted.fact, next=share)


def _seen(mask: Tensor, limit: float | None, length: int) -> Tensor:
    """How many positions see the next one, and how many of these next ones see themselves."""
    mask = _some(mask)
    mask = mask.expand(*mask.shape[:-2], length, length)
    following, itself = mask.diagonal(1, -2, -1), mask.diagonal(0, -2, -1)[..., 1:]
    following, itself = (~following, ~itself) if limit is None else (following > limit, itself > limit)
    return torch.stack(((following & itself).sum(), itself.sum())).float()


def _some(mask: Tensor) -> Tensor:
    """The mask of a few sequences and heads."""
    for axis in range(mask.dim() - 2):
        mask = mask.narrow(axis, 0, min(mask.shape[axis], _SEQUENCES))
    return mask


def _is_float(mask: Tensor | None) -> bool:
    return mask is not None and mask.is_floating_point()


@functools.cache
def _names_of_heads() -> tuple[str, ...]:
    return tuple(inspect.signature(F.multi_head_attention_forward).parameters)
