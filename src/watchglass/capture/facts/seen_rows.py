"""Which rows of a batch are training data.

Rows are compared by hashes, in the recorder's thread. A row is a sample. Of a long sequence of tokens, of which scripts
cut pieces at random places, a row is each run of :data:`RUN` tokens whose hash is divisible by :data:`_ONE_IN`: equal
runs are found wherever they begin.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from watchglass.capture.facts.input_sketches import Sample

#: Most rows of a batch, and most elements of a row: numbers, spread over it, or tokens from its beginning.
MOST_ROWS, MOST_NUMBERS, MOST_TOKENS = 64, 64, 256
#: Tokens in a row that are compared where sequences are longer, a power of two; and which of these runs.
RUN, _ONE_IN = 32, 16
#: Rows that are remembered: the latest, and as many before them.
_MOST = 1 << 15
_MIX = np.uint64(0x9E3779B97F4A7C15)


class SeenRows:
    """The hashes of rows that training steps have had."""

    def __init__(self) -> None:
        self._latest: set[int] = set()
        self._before: set[int] = set()
        self._waiting: deque[Sample] = deque()
        #: Batches that were noted, and those of them that were hashed.
        self.noted = self._hashed = 0

    def note(self, sample: Sample) -> None:
        """A training batch. For the training thread."""
        self._waiting.append(sample)
        self.noted += 1

    def hash_up_to(self, noted: int) -> None:
        """Remember the rows of so many batches. For the recorder's thread, like :meth:`share`."""
        while self._hashed < noted:
            if len(self._latest) >= _MOST:
                self._before, self._latest = self._latest, set()
            self._latest.update(hashes_of(self._waiting.popleft()).tolist())
            self._hashed += 1

    def share(self, sample: Sample, noted: int) -> float:
        """Share of the rows of a batch that are among those of so many; 0 where no rows of it can be compared."""
        # The recorder writes several steps at once, and numbers before facts.
        self.hash_up_to(noted)
        hashes = hashes_of(sample).tolist()
        return sum(each in self._latest or each in self._before for each in hashes) / max(1, len(hashes))


def hashes_of(sample: Sample) -> NDArray[np.uint64]:
    """Hashes of the rows of a sample, uint64[n]; without rows of equal elements, which prove nothing."""
    octets = sample.octets()
    size = octets.size // max(1, sample.size)
    if not sample.rows or size not in (1, 2, 4, 8):
        return np.zeros(0, np.uint64)
    words = octets.view(f"u{size}").reshape(sample.rows, -1).astype(np.uint64)
    if len(sample.shape) == 2 and "int" in sample.dtype and words.shape[1] > RUN:
        return _runs(words)
    varied = words[(words != words[:, :1]).any(axis=1) if words.shape[1] > 1 else slice(None)]
    factors = (np.arange(varied.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)) * _MIX
    return _mixed((_mixed(varied + np.uint64(1)) * factors).sum(axis=1, dtype=np.uint64))


def _runs(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    hashes, length = _mixed(words + np.uint64(1)), 1
    while length < RUN:
        hashes = _mixed(hashes[:, :-length] * np.uint64(2 * length + 1) + hashes[:, length:])
        length *= 2
    first, last = words[:, : hashes.shape[1]], words[:, RUN - 1 :]
    middle = words[:, RUN // 2 : RUN // 2 + hashes.shape[1]]
    return np.asarray(hashes[(hashes % np.uint64(_ONE_IN) == 0) & ((first != last) | (first != middle))])


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection whose results look random in all bits (of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))
