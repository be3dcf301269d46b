"""Where the class labels of a loss lie among the tokens that a model embeds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor

from watchglass.capture.arrays import Elements
from watchglass.capture.facts.token_labels import (
    MOST_EMBEDDED,
    MOST_LOSSES,
    MOST_PREDICTIONS,
    MOST_TOKENS,
    LabelsOfTokens,
    is_token_like,
)
from watchglass.capture.pytorch.events import LossCall, ModuleCall
from watchglass.capture.pytorch.facts.copies import Copies, is_readable
from watchglass.capture.pytorch.graph import nodes
from watchglass.capture.pytorch.public_calls import argument_of
from watchglass.records import facts, loss_kind

#: Operations between logits and a loss that keep the order of positions, and those that may change it.
_ORDERLY = ("reshape", "copy", "transpose", "slice", "log_softmax")
_REORDERING = ("index", "choose", "gather", "roll", "pad")
_MOST_HOPS = 12


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
        if len(self._embedded) >= MOST_EMBEDDED or not _has_integers(given):
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
        if len(self._losses) >= MOST_LOSSES or not isinstance(call.predictions, Tensor) or call.predictions.dim() < 2:
            return False
        ignored = argument_of(call.function, "ignore_index", call.arguments, call.kwargs, -100)
        candidates = [each for each in self._embedded if LabelsOfTokens.fit(each[0], call.target.shape)]
        if not candidates:
            return False
        shape = candidates[0][0]
        length = LabelsOfTokens.length(shape, call.target.shape)
        start = _start(call.predictions, shape[-1], length)
        if start is None:
            return False
        copies, block = Copies(), _block(call.target.reshape(-1, length))
        labels = copies.add(block.clone())
        right = copies.add(_right(call.predictions, call.target, ignored, length))
        copies.send()
        embedded = [tokens for each, tokens in candidates if each == shape]
        about = LabelsOfTokens(call.function, tuple(shape), start, ignored)
        self._losses.append(functools.partial(_compared, about, embedded, labels, block.shape[1], right))
        return True

    def fact(self) -> facts.TokensAndLabels:
        """Losses and embedded tokens; for the recorder's thread."""
        losses = [of_loss() for of_loss in self._losses]
        embedded = sum(is_token_like(tokens.received()) for _, tokens in self._embedded)
        return facts.TokensAndLabels(tuple(each for each in losses if each is not None), embedded)


def _compared(
    about: LabelsOfTokens, embedded: list[Elements], block: Elements, columns: int, right: Elements
) -> facts.ComparedLabels | None:
    """The labels of a loss beside the embedded tokens; for the recorder's thread."""
    labels = block.received().reshape(-1, columns)
    counts = [(float(count), float(known)) for count, known in right.received().reshape(2, 2)]
    return about.compared([each.received() for each in embedded], labels, counts)


def _has_integers(tensor: Any) -> TypeGuard[Tensor]:
    """Whether it holds integers that can be read now."""
    return is_readable(tensor) and tensor.dtype in (torch.int64, torch.int32) and tensor.numel() > 0


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() == 2 else tensor[None]


def _block(tensor: Tensor) -> Tensor:
    """The first rows of a matrix, of at most 4,096 elements."""
    columns = min(tensor.shape[1], MOST_TOKENS)
    return tensor[: max(1, MOST_TOKENS // columns), :columns]


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
        values, classes = values[:MOST_PREDICTIONS], classes[:MOST_PREDICTIONS]
        judged = (classes != ignored) & (classes >= 0)
        found += [((values.argmax(-1) == classes) & judged).sum(), judged.sum()]
    return torch.stack(found).float()
