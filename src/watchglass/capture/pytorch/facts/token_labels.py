"""Where the class labels of a loss lie among the tokens that a model embeds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from watchglass.capture.arrays import Elements
from watchglass.capture.pytorch.events import LossCall, ModuleCall
from watchglass.capture.pytorch.facts.copies import Copies, is_readable
from watchglass.capture.pytorch.graph import nodes
from watchglass.capture.pytorch.public_calls import argument_of
from watchglass.records import facts, loss_kind

#: Tokens that are copied, embedded tensors and losses that are noted.
_TOKENS, _MOST_EMBEDDED, _MOST_LOSSES = 4096, 4, 4
#: Predictions that are compared, twice.
_PREDICTIONS = 64
#: Operations between logits and a loss that keep the order of positions, and those that may change it.
_ORDERLY = ("reshape", "copy", "transpose", "slice", "log_softmax")
_REORDERING = ("index", "choose", "gather", "roll", "pad")
_MOST_HOPS = 12
#: Moves of the labels against the tokens that are compared.
_MOVES = {"same": 0, "next": 1, "second": 2}


class TokenLabels:
    """The tokens that one forward embeds, and the labels of the losses on its predictions.

    Args:
        copies: Where the embedded tokens are added, until the first loss. Labels have copies of their own.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        # Of each embedded tensor: its shape and a copy of its first rows and columns.
        self._embedded: list[tuple[torch.Size, Elements]] = []
        self._memory: set[Any] = set()
        self._losses: list[Callable[[], facts.ComparedLabels | None]] = []

    @property
    def embedded(self) -> bool:
        """Whether the forward embeds integers."""
        return bool(self._embedded)

    def embed(self, call: ModuleCall) -> None:
        """A module of kind EMBEDDING has returned."""
        given = call.arguments[0] if call.arguments else None
        if len(self._embedded) >= _MOST_EMBEDDED or not _has_integers(given):
            return
        if given.dim() not in (1, 2) or given.numel() < 2:
            return
        memory = given.data_ptr(), given.shape
        if memory not in self._memory:
            self._memory.add(memory)
            self._embedded.append((given.shape, self._copies.add(_block(_rows(given)).clone())))

    def compare(self, call: LossCall) -> bool:
        """A loss function has returned; whether its labels can be compared with the tokens, and will be."""
        if not loss_kind(call.function).of_classes or not _has_integers(call.target):
            return False
        if len(self._losses) >= _MOST_LOSSES or not isinstance(call.predictions, Tensor) or call.predictions.dim() < 2:
            return False
        ignored = argument_of(call.function, "ignore_index", call.arguments, call.kwargs, -100)
        candidates = [each for each in self._embedded if _fits(each[0], call.target)]
        if not candidates:
            return False
        shape = candidates[0][0]
        length = _length(shape, call.target)
        start = _start(call.predictions, shape[-1], length)
        if start is None:
            return False
        copies, block = Copies(), _block(call.target.reshape(-1, length))
        labels = copies.add(block.clone())
        right = copies.add(_right(call.predictions, call.target, ignored, length))
        copies.send()
        embedded = [tokens for each, tokens in candidates if each == shape]
        made = functools.partial(
            _of_loss, call.function, shape, start, ignored, embedded, labels, block.shape[1], right
        )
        self._losses.append(made)
        return True

    def fact(self) -> facts.TokensAndLabels:
        """Losses and embedded tokens; for the recorder's thread."""
        losses = [of_loss() for of_loss in self._losses]
        embedded = sum(_is_token_like(tokens.received()) for _, tokens in self._embedded)
        return facts.TokensAndLabels(tuple(each for each in losses if each is not None), embedded)


def _of_loss(
    function: str, shape: torch.Size, start: int, ignored: int, embedded: list[Elements],
    block: Elements, columns: int, right_ones: Elements,
) -> facts.ComparedLabels | None:  # fmt: skip
    """The labels of a loss, compared with the embedded tokens that they agree with most."""
    labels, found = block.received().reshape(-1, columns), None
    for each in embedded:
        tokens = each.received().reshape(-1, min(shape[-1], _TOKENS))
        for axis in (1, 0) if len(shape) == 2 and tokens.shape == labels.shape and start == 0 else (1,):
            agreeing = {name: _agreeing(tokens, labels, start + move, axis, ignored) for name, move in _MOVES.items()}
            if found is None or max(agreeing.values()) > max(found.agreeing.values()):
                found = facts.ComparedLabels(function, agreeing, axis, shape[axis if len(shape) == 2 else 0])
    judged = labels[(labels != ignored) & (labels >= 0)]
    right = [float(count / known) for count, known in right_ones.received().reshape(2, 2) if known]
    distinct, least = int(np.unique(judged).size), min(right, default=None)
    return found and replace(found, judged=int(judged.size), distinct=distinct, right=least)


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


def _is_token_like(tokens: NDArray[Any]) -> bool:
    """Whether embedded numbers may be tokens: not positions in order, nor two kinds of segments."""
    return bool(np.unique(tokens).size > 2 and (np.diff(tokens) == 1).mean() < 0.9)


def _has_integers(tensor: Any) -> TypeGuard[Tensor]:
    """Whether it holds integers that can be read now."""
    return is_readable(tensor) and tensor.dtype in (torch.int64, torch.int32) and tensor.numel() > 0


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
    node, start, sliced = None, 0, False
    for node, _ in nodes.chain(predictions.grad_fn, predictions.output_nr, _ORDERLY, _MOST_HOPS):
        if nodes.operation_of(node).name == "slice":
            sizes = nodes.shape_of(*nodes.operands(node)[0])
            axis = nodes.axis_of(node._saved_dim, len(sizes)) if sizes else None
            if axis is not None and sizes[axis] == positions:
                sliced = True
                start += nodes.axis_of(node._saved_start, positions)
    if node is None or nodes.operation_of(node).name in (*_ORDERLY, *_REORDERING):
        return None
    return start if sliced or length == positions else None


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
