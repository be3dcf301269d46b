"""A small language model and its text, for tests of rules about tokens, labels and masks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIZE, LENGTH, WIDTH = 11, 12, 24


def text(rows: int) -> Tensor:
    """Sequences of one token more than the model takes; each has three followers, and all are equally frequent."""
    tokens = [torch.randint(SIZE, (rows,))]
    for _ in range(LENGTH):
        tokens.append((tokens[-1] + torch.tensor([1, 3, 4])[torch.randint(3, (rows,))]) % SIZE)
    return torch.stack(tokens, 1)


class SmallDecoder(nn.Module):
    """One block of a decoder.

    Args:
        masked: Whether attention is causal.
        moves: Whether the model itself moves its tokens by one, behind a learned first vector.
    """

    def __init__(self, *, masked: bool = True, moves: bool = False) -> None:
        super().__init__()
        self.masked, self.moves = masked, moves
        self.tokens, self.positions = nn.Embedding(SIZE, WIDTH), nn.Embedding(LENGTH, WIDTH)
        if moves:
            self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SIZE)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of shape ``(rows, positions, tokens)``."""
        embedded = self.tokens(ids)
        if self.moves:
            embedded = torch.cat((self.first.expand(len(ids), 1, -1), embedded[:, :-1]), 1)
        hidden = embedded + self.positions(torch.arange(ids.shape[1]))
        query, key, value = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(hidden).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.masked)
        logits: Tensor = self.head(self.norm(hidden + self.out(mixed.transpose(1, 2).flatten(2))))
        return logits
