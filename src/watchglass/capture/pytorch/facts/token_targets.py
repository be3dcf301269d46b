"""Fact ``token_targets``: how the class labels of a loss lie to the tokens that the model embeds, and who sees whom.

A language model predicts the token after each one: its labels are the tokens moved by one. Labels that were not moved,
or moved twice, are a fault that no curve shows, and so is attention that sees the token which is to be predicted. Both
are exact relations of numbers that every step has, so few looks suffice.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeGuard

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from watchglass.capture.deferred_values import DeferredFact
from watchglass.capture.hook import Hook
from watchglass.capture.pytorch import autograd_graph as graphs
from watchglass.capture.pytorch.compiled.graphs import in_graph_capture
from watchglass.capture.pytorch.events import BackwardCall, ForwardCall, LossCall, ModuleCall
from watchglass.capture.pytorch.facts.copies import Copies, CopyPlace
from watchglass.capture.pytorch.public_calls import ATTENTION, MULTI_HEAD_ATTENTION, SOFTMAX, argument_of
from watchglass.capture.pytorch.tensors.attention import is_of_products, named_arguments
from watchglass.record import Forward, OpenStep
from watchglass.records import Mode, ModuleKind

_log = logging.getLogger("watchglass")
#: Steps of a model that are all looked at; after them the 4th, 8th, 16th ...
_ALL = 3
#: Tokens that are copied, embedded tensors and calls of loss functions and attention that are noted.
_TOKENS, _MOST_EMBEDDED, _MOST_LOSSES, _MOST_CALLS = 4096, 4, 4, 256
#: Sequences of which masks are read, and predictions that are compared, twice.
_SEQUENCES, _PREDICTIONS = 4, 64
#: What is added to a logit that is not to be seen is below this: exp(-1000) is 0 in every dtype.
_HIDDEN = -1000.0
#: Operations between logits and a loss that change the arrangement alone.
_ARRANGING = (
    "ViewBackward", "ReshapeAliasBackward", "UnsafeViewBackward", "CloneBackward", "ToCopyBackward",
    "TransposeBackward", "PermuteBackward", "SqueezeBackward", "UnsqueezeBackward", "AliasBackward", "SliceBackward",
)  # fmt: skip
_MOST_HOPS = 12
#: Moves of the labels against the tokens that are compared.
_MOVES = (0, 1, 2)


class _Look:
    """One forward that is looked at."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.copies = Copies()
        # Of each embedded tensor: its shape and a copy of its first rows and columns.
        self.embedded: list[tuple[torch.Size, CopyPlace]] = []
        self.memory: set[Any] = set()
        self.attention: list[dict[str, Any]] = []
        self.recurrent: list[bool] = []
        self.losses: list[dict[str, Any]] = []

    @property
    def closed(self) -> bool:
        """Whether a loss has been computed: what is called later makes no part of its predictions."""
        return bool(self.losses)


class TokenTargets:
    """Notes the tokens that embeddings take, who sees whom in attention, and the labels of loss functions."""

    def __init__(self, hook: Hook, leave: ExitStack) -> None:
        self._hook = hook
        # By model: captured steps so far.
        self._captures: dict[int, int] = {}
        # Models that embed no tokens.
        self._others: set[int] = set()
        # Whether the first forward of the present step is looked at.
        self._due = False
        self._look: _Look | None = None
        self._listening: list[Callable[[], None]] = []
        # How many calls of multi_head_attention_forward are running: what they call is no other attention.
        self._within = 0
        #: An entry of :attr:`Events.module_listeners`.
        self.module_listeners = (lambda: self._due, self._called)
        leave.callback(self._end)

    def step_began(self, step: OpenStep) -> None:
        """A captured step has opened."""
        self._end()
        number = self._captures[step.model] = self._captures.get(step.model, 0) + 1
        self._due = step.model not in self._others and (number <= _ALL or number & (number - 1) == 0)

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward begins."""
        self._end()
        if not self._due or call.step.mode is not Mode.TRAIN or not call.forward.grad:
            return
        self._due = False
        self._look = _Look(call.forward)
        guard, guarded = self._hook.guard, self._hook.guarded
        self._listening = [
            ATTENTION.listen(guard, after=guarded(self._attended)),
            MULTI_HEAD_ATTENTION.listen(guard, before=self._enter, after=guarded(self._heads), ended=self._exit),
            SOFTMAX.listen(guard, after=guarded(self._softmax)),
        ]

    def forward_ended(self, call: ForwardCall) -> None:
        """It has ended; its loss may follow."""
        self._unwrap()
        look = self._look
        if look is not None and look.forward is call.forward and not look.embedded:
            self._look = None
            if self._captures.get(call.forward.model, 0) >= _ALL:
                self._others.add(call.forward.model)

    def backward_began(self, call: BackwardCall) -> None:
        """All losses are computed: keep nothing of the forward."""
        self._look = None

    def _unwrap(self) -> None:
        self._within = 0
        while self._listening:
            self._listening.pop()()

    def _end(self) -> None:
        self._unwrap()
        self._look = None

    def _carefully(self, look: Callable[[], None]) -> None:
        """Attention and losses have more forms than are known here: an unknown one ends the look."""
        try:
            look()
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            _log.debug("watchglass: tokens and labels were not read: %s: %s", type(error).__name__, error)
            self._look = None

    def _called(self, call: ModuleCall) -> None:
        if self._look is not None and not self._look.closed:
            self._carefully(functools.partial(self._embedded, self._look, call))

    @staticmethod
    def _embedded(look: _Look, call: ModuleCall) -> None:
        if call.place.kind is ModuleKind.RECURRENT and len(look.recurrent) < _MOST_CALLS:
            look.recurrent.append(bool(getattr(call.module, "bidirectional", False)))
        if call.place.kind is not ModuleKind.EMBEDDING or len(look.embedded) >= _MOST_EMBEDDED:
            return
        given = call.arguments[0] if call.arguments else None
        if not _is_readable(given) or given.dim() not in (1, 2) or given.numel() < 2:
            return
        memory = given.data_ptr(), given.shape
        if memory not in look.memory:
            look.memory.add(memory)
            look.embedded.append((given.shape, look.copies.add(_block(_rows(given)).clone())))

    # -- attention ------------------------------------------------------------------------------------------------

    def _enter(self, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._within += 1

    def _exit(self, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._within = max(0, self._within - 1)

    def _attended(self, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self._look is not None and not self._within:
            self._carefully(functools.partial(self._fused, named_arguments(arguments, kwargs)))

    def _fused(self, given: dict[str, Any]) -> None:
        causal = bool(given.get("is_causal"))
        limit = _HIDDEN if _is_float(given.get("attn_mask")) else 0
        self._note(
            given["query"].shape[-2], given["key"].shape[-2], given.get("attn_mask"), limit, causal=causal, itself=None
        )

    def _heads(self, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self._look is not None:
            given = dict(zip(_names_of_heads(), arguments, strict=False)) | kwargs
            self._carefully(functools.partial(self._by_heads, given))

    def _by_heads(self, given: dict[str, Any]) -> None:
        query, key, mask = given["query"], given["key"], given.get("attn_mask")
        # True is what is not to be seen here.
        self._note(
            query.shape[0], key.shape[0], mask, _HIDDEN if _is_float(mask) else None, causal=False, itself=query is key
        )

    def _softmax(self, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = {**dict(zip(("input", "dim"), arguments, strict=False)), **kwargs}
        logits, axis = given.get("input"), given.get("dim")
        if self._look is None or self._within or not isinstance(logits, Tensor) or not isinstance(result, Tensor):
            return
        if not 3 <= logits.dim() <= 4 or axis not in (-1, logits.dim() - 1) or not is_of_products(logits.grad_fn):
            return
        queries, keys = logits.shape[-2:]
        self._carefully(lambda: self._note(queries, keys, result, 0, causal=False, itself=None))

    def _note(
        self, queries: int, keys: int, mask: Tensor | None, limit: float | None, *, causal: bool, itself: bool | None
    ) -> None:
        """Attention was computed.

        Args:
            queries: Positions that look.
            keys: Positions that are looked at.
            mask: By query and key; None where none was given.
            limit: A query sees a key where the mask is above it; None where it sees what the mask does not name.
            causal: Whether no query sees a later key, without a mask.
            itself: Whether queries and keys come from one tensor; None where that is not known.
        """
        look = self._look
        if look is None or look.closed or len(look.attention) >= _MOST_CALLS:
            return
        noted: dict[str, Any] = {"queries": queries, "keys": keys, "itself": itself, "next": 0.0 if causal else 1.0}
        if queries == keys > 1 and mask is not None and mask.dim() > 1:
            if mask.layout is not torch.strided or mask.is_nested or in_graph_capture(mask):
                return
            noted["next"] = look.copies.add(_seen(mask.detach(), limit, queries))
        look.attention.append(noted)

    # -- labels ---------------------------------------------------------------------------------------------------

    def loss_computed(self, call: LossCall) -> None:
        """A loss function has returned."""
        look = self._look
        if look is not None and call.forward is look.forward and call.training and look.embedded:
            self._carefully(functools.partial(self._compare, look, call))

    @staticmethod
    def _compare(look: _Look, call: LossCall) -> None:
        if call.function not in ("cross_entropy", "nll_loss") or not _is_readable(call.target):
            return
        if len(look.losses) >= _MOST_LOSSES or not isinstance(call.predictions, Tensor) or call.predictions.dim() < 2:
            return
        ignored = argument_of(call.function, "ignore_index", call.arguments, call.kwargs, -100)
        candidates = [each for each in look.embedded if _fits(each[0], call.target)]
        if not candidates:
            return
        shape = candidates[0][0]
        length = _length(shape, call.target)
        start = _start(call.predictions, shape[-1], length)
        if start is None:
            return
        if not look.closed:
            look.copies.send()
            call.forward.records.facts.append(("token_targets", "loss", DeferredFact(lambda: _data(look))))
        copies, labels = Copies(), call.target.reshape(-1, length)
        block = _block(labels)
        noted = {
            "function": call.function,
            "tokens": [place for each, place in candidates if each == shape],
            "shape": shape,
            "copies": copies,
            "labels": copies.add(block.clone()),
            "columns": block.shape[1],
            "right": copies.add(_right(call.predictions, call.target, ignored, length)),
            "start": start,
            "ignored": ignored,
        }
        copies.send()
        look.losses.append(noted)


def _data(look: _Look) -> dict[str, Any] | None:
    """Data of the fact; for the recorder's thread."""
    values = look.copies.values()
    losses = [_of_loss(noted, values) for noted in look.losses]
    return {
        "losses": [each for each in losses if each is not None],
        "embedded": sum(_is_token_like(values[place]) for _, place in look.embedded),
        "attention": _summed([_of_attention(noted, values) for noted in look.attention]),
        "recurrent": look.recurrent,
    }


def _of_loss(noted: dict[str, Any], values: dict[CopyPlace, NDArray[Any]]) -> dict[str, Any] | None:
    own = noted["copies"].values()
    labels = own[noted["labels"]].reshape(-1, noted["columns"])
    shape, found = noted["shape"], None
    for place in noted["tokens"]:
        tokens = values[place].reshape(-1, min(shape[-1], _TOKENS))
        for axis in (1, 0) if len(shape) == 2 and tokens.shape == labels.shape and noted["start"] == 0 else (1,):
            shares = [_agreeing(tokens, labels, noted["start"] + move, axis, noted["ignored"]) for move in _MOVES]
            if found is None or max(shares) > max(found["shares"]):
                found = {"shares": shares, "axis": axis, "length": shape[axis if len(shape) == 2 else 0]}
    if found is None:
        return None
    judged = labels[(labels != noted["ignored"]) & (labels >= 0)]
    right = [float(count / known) for count, known in own[noted["right"]].reshape(2, 2) if known]
    return {
        "function": noted["function"],
        "agreeing": dict(zip(("same", "next", "second"), found["shares"], strict=True)),
        "axis": found["axis"],
        "length": found["length"],
        "judged": int(judged.size),
        "distinct": int(np.unique(judged).size),
        "right": min(right, default=None),
    }


def _agreeing(tokens: NDArray[Any], labels: NDArray[Any], move: int, axis: int, ignored: int) -> float:
    """Share of the labels that are the token ``move`` positions on; 0 where none can be compared."""
    if axis == 0:
        tokens, labels = tokens.T, labels.T
    rows, length = min(len(tokens), len(labels)), min(tokens.shape[1] - move, labels.shape[1])
    if length < 1:
        return 0.0
    tokens, labels = tokens[:rows, move : move + length], labels[:rows, :length]
    judged = (labels != ignored) & (labels >= 0)
    return float((tokens == labels)[judged].mean()) if judged.any() else 0.0


def _of_attention(noted: dict[str, Any], values: dict[CopyPlace, NDArray[Any]]) -> dict[str, Any]:
    share = noted["next"]
    if not isinstance(share, float):
        seen, itself = values[share]
        share = float(seen / itself) if itself else 0.0
    return {**noted, "next": share}


def _summed(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls that are alike as one, with their number."""
    numbers: dict[tuple[Any, ...], int] = {}
    for call in calls:
        key = tuple(call.items())
        numbers[key] = numbers.get(key, 0) + 1
    return [{**dict(key), "calls": number} for key, number in numbers.items()]


def _is_token_like(tokens: NDArray[Any]) -> bool:
    """Whether embedded numbers may be tokens: not positions in order, nor two kinds of segments."""
    return bool(np.unique(tokens).size > 2 and (np.diff(tokens) == 1).mean() < 0.9)


def _is_readable(tensor: Any) -> TypeGuard[Tensor]:
    """Whether it holds integers that can be read now."""
    if not isinstance(tensor, Tensor) or tensor.dtype not in (torch.int64, torch.int32) or hasattr(tensor, "to_local"):
        return False
    if tensor.is_meta or tensor.is_nested or tensor.layout is not torch.strided or not tensor.numel():
        return False
    return not in_graph_capture(tensor)


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() == 2 else tensor[None]


def _block(tensor: Tensor) -> Tensor:
    """The first rows of a matrix, of at most 4,096 elements."""
    columns = min(tensor.shape[1], _TOKENS)
    return tensor[: max(1, _TOKENS // columns), :columns]


def _length(shape: torch.Size, target: Tensor) -> int:
    """Number of labels for each row of tokens; 0 if rows do not have equally many."""
    rows = shape[0] if len(shape) == 2 else 1
    return target.numel() // rows if target.numel() % rows == 0 else 0


def _fits(shape: torch.Size, target: Tensor) -> bool:
    """Whether labels may be those of the tokens, less one or two at an end."""
    length = _length(shape, target)
    if not 1 < shape[-1] - 2 <= length <= shape[-1]:
        return False
    return target.dim() == 1 or (target.dim() == 2 and target.shape == (*shape[:-1], length)[-2:])


def _start(predictions: Tensor, positions: int, length: int) -> int | None:
    """The position of the first prediction that the loss is given; None where that does not show."""
    node: Any = predictions.grad_fn
    start, sliced = 0, False
    for _ in range(_MOST_HOPS):
        name = "" if node is None else node.name()
        if not name.startswith(_ARRANGING):
            break
        if name.startswith("SliceBackward"):
            sizes = graphs.shape_of(node.next_functions[0][0], node.next_functions[0][1])
            axis = graphs.axis_of(node._saved_dim, len(sizes)) if sizes else None
            if axis is not None and sizes[axis] == positions:
                sliced = True
                start += graphs.axis_of(node._saved_start, positions)
        node = node.next_functions[0][0] if node.next_functions else None
    if node is None or name.startswith("IndexBackward"):
        return None
    return start if sliced or length == positions else None


def _seen(mask: Tensor, limit: float | None, length: int) -> Tensor:
    """How many positions see the next one, and how many of these next ones see themselves."""
    for axis in range(mask.dim() - 2):
        mask = mask.narrow(axis, 0, min(mask.shape[axis], _SEQUENCES))
    mask = mask.expand(*mask.shape[:-2], length, length)
    following, itself = mask.diagonal(1, -2, -1), mask.diagonal(0, -2, -1)[..., 1:]
    following, itself = (~following, ~itself) if limit is None else (following > limit, itself > limit)
    return torch.stack(((following & itself).sum(), itself.sum())).float()


def _is_float(mask: Tensor | None) -> bool:
    return mask is not None and mask.is_floating_point()


@functools.cache
def _names_of_heads() -> tuple[str, ...]:
    return tuple(inspect.signature(F.multi_head_attention_forward).parameters)


def _right(predictions: Tensor, target: Tensor, ignored: int, length: int) -> Tensor:
    """How many of a few predictions are right, and how many were compared; of first positions, and of the first ones.

    A model that moves its tokens itself knows nothing at the first position. Positions may come before rows.
    """
    if predictions.dim() == 2 and target.dim() == 1:
        rows, labels = predictions.detach(), target
        chosen = [(rows[::length], labels[::length]), (rows, labels)]
    else:
        rows = predictions.detach().flatten(2)
        labels = target.reshape(rows.shape[0], rows.shape[2])
        chosen = [(rows[..., 0], labels[:, 0]), (rows[0].T, labels[0])]
    found = []
    for values, classes in chosen:
        values, classes = values[:_PREDICTIONS], classes[:_PREDICTIONS]
        judged = (classes != ignored) & (classes >= 0)
        found += [((values.argmax(-1) == classes) & judged).sum(), judged.sum()]
    return torch.stack(found).float()
