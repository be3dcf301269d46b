"""Where the class labels of a loss lie among the tokens that a model embeds, of copies in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import facts

#: Tokens that are copied, embedded tensors and losses that are noted.
MOST_TOKENS, MOST_EMBEDDED, MOST_LOSSES = 4096, 4, 4
#: Predictions that are compared, twice.
MOST_PREDICTIONS = 64
#: Moves of the labels against the tokens that are compared.
_MOVES = {"same": 0, "next": 1, "second": 2}


@dataclass(frozen=True)
class LabelsOfTokens:
    """The labels of one loss beside the tokens that they may be of.

    Attributes:
        function: The word of the loss function.
        shape: Shape of the embedded tokens, one axis or two.
        start: The position of the first prediction that the loss is given.
        ignored: The class that counts as none.
    """

    function: str
    shape: tuple[int, ...]
    start: int
    ignored: int

    @staticmethod
    def length(shape: Sequence[int], labels: Sequence[int]) -> int:
        """Number of labels for each row of tokens, by the shapes of both; 0 if rows do not have equally many."""
        rows, total = shape[0] if len(shape) == 2 else 1, int(np.prod(labels))
        return total // rows if total % rows == 0 else 0

    @classmethod
    def fit(cls, shape: Sequence[int], labels: Sequence[int]) -> bool:
        """Whether labels may be those of tokens, less one or two at an end, by the shapes of both."""
        length = cls.length(shape, labels)
        if not 1 < shape[-1] - 2 <= length <= shape[-1]:
            return False
        return len(labels) == 1 or (len(labels) == 2 and tuple(labels) == (*shape[:-1], length)[-2:])

    def compared(
        self, embedded: Sequence[NDArray[Any]], labels: NDArray[Any], right: Sequence[tuple[float, float]]
    ) -> facts.ComparedLabels | None:
        """The labels, compared with the embedded tokens that they agree with most.

        Args:
            embedded: Copies of the tensors of this shape, each of its first rows and columns.
            labels: The same rows and columns of the labels.
            right: How many of a few predictions are right, and how many were compared; of first positions and of all.
        """
        found, shape = None, self.shape
        for each in embedded:
            tokens = each.reshape(-1, min(shape[-1], MOST_TOKENS))
            for axis in (1, 0) if len(shape) == 2 and tokens.shape == labels.shape and self.start == 0 else (1,):
                agreeing = {name: self._agreeing(tokens, labels, move, axis) for name, move in _MOVES.items()}
                if found is None or max(agreeing.values()) > max(found.agreeing.values()):
                    length = shape[axis if len(shape) == 2 else 0]
                    found = facts.ComparedLabels(self.function, agreeing, axis, length)
        judged = labels[self._judged(labels)]
        shares = [float(count / known) for count, known in right if known]
        distinct, least = int(np.unique(judged).size), min(shares, default=None)
        return found and replace(found, judged=int(judged.size), distinct=distinct, right=least)

    def _agreeing(self, tokens: NDArray[Any], labels: NDArray[Any], move: int, axis: int) -> float:
        """Share of the labels that are the token ``move`` positions on; 0 where none can be compared."""
        if axis == 0:
            tokens, labels = tokens.T, labels.T
        move += self.start
        rows, length = min(len(tokens), len(labels)), min(tokens.shape[1] - move, labels.shape[1])
        if length < 1:
            return 0.0
        tokens, labels = tokens[:rows, move : move + length], labels[:rows, :length]
        judged = self._judged(labels)
        return float((tokens == labels)[judged].mean()) if judged.any() else 0.0

    def _judged(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray((labels != self.ignored) & (labels >= 0))


def is_token_like(tokens: NDArray[Any]) -> bool:
    """Whether embedded numbers may be tokens: not positions in order, nor two kinds of segments."""
    return bool(np.unique(tokens).size > 2 and (np.diff(tokens) == 1).mean() < 0.9)
