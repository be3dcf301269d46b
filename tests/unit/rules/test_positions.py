"""Whether attention gets positions, from the graph of a forward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from watchglass.capture.facts.forward_layers import described
from watchglass.capture.pytorch.graph.autograd_graph import Graph
from watchglass.rules.graph.forward import ForwardGraph

TOKENS = torch.arange(12).view(2, 6)


class Model(nn.Module):
    """Two layers of attention to embeddings; what is done to these is given."""

    def __init__(self, placed: Callable[[Tensor], Tensor], *, by_hand: bool = False) -> None:
        super().__init__()
        self.tokens, self.placed = nn.Embedding(12, 8), placed
        self.blocks = nn.ModuleList([ByHand() if by_hand else Packed() for _ in range(2)])
        self.last = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.placed(self.tokens(tokens))
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.last(hidden.mean(1))


class Packed(nn.Module):
    """PyTorch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.norm(hidden)
        result: Tensor = self.attention(hidden, hidden, hidden, need_weights=False)[0]
        return result


class ByHand(nn.Module):
    """Attention of tensor operations, with a bias for the distance of tokens if one is given."""

    bias: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        scores = self.query(hidden) @ self.key(hidden).transpose(1, 2) / 8**0.5
        if self.bias is not None:
            scores = scores + self.bias
        result: Tensor = self.out(scores.softmax(-1) @ self.value(hidden))
        return result


def placeless(model: nn.Module) -> bool:
    loss = F.cross_entropy(model(TOKENS), torch.tensor([0, 1]))
    graph = Graph(loss.grad_fn)
    return ForwardGraph(described(graph, lambda parameter: f"layer {id(parameter)}")).attends_without_positions()


PLACES = torch.randn(6, 8)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(
    ("placed", "found"),
    [
        (lambda hidden: hidden, True),
        (lambda hidden: F.dropout(8**0.5 * hidden, 0.1), True),
        # Sinusoids, learned positions, and both orders in time.
        (lambda hidden: hidden + PLACES, False),
        (lambda hidden: hidden + nn.Parameter(PLACES), False),
        (lambda hidden: hidden + nn.Embedding(6, 8)(torch.arange(6)), False),
        (lambda hidden: nn.GRU(8, 8, batch_first=True)(hidden)[0], False),
        (lambda hidden: nn.Conv1d(8, 8, 3, padding=1)(hidden.transpose(1, 2)).transpose(1, 2), False),
    ],
)
def test_positions_are_added_before_attention(placed: Callable[[Tensor], Tensor], found: bool, by_hand: bool) -> None:
    assert placeless(Model(placed, by_hand=by_hand)) is found


def test_scores_with_a_bias_know_distances() -> None:
    model = Model(lambda hidden: hidden, by_hand=True)
    assert placeless(model)
    for block in model.blocks:
        block.bias = torch.randn(6, 6)
    assert not placeless(model)


def test_rotated_queries_and_keys_know_positions() -> None:
    class Rotated(ByHand):
        def forward(self, hidden: Tensor) -> Tensor:
            query, key = (self.turned(each(hidden)) for each in (self.query, self.key))
            result: Tensor = self.out(F.scaled_dot_product_attention(query, key, self.value(hidden)))
            return result

        def turned(self, given: Tensor) -> Tensor:
            one, other = given.chunk(2, dim=-1)
            angles = torch.arange(6)[:, None] * torch.ones(4)
            return given * angles.cos().repeat(1, 2) + torch.cat((-other, one), -1) * angles.sin().repeat(1, 2)

    model = Model(lambda hidden: hidden)
    model.blocks = nn.ModuleList([Rotated(), Rotated()])
    assert not placeless(model)


def test_a_model_without_attention_needs_no_positions() -> None:
    assert not placeless(nn.Sequential(nn.Embedding(12, 8), nn.Flatten(), nn.Linear(48, 3)))
