"""How the labels of a loss lie to the tokens that a model embeds, and whom attention sees, as a fact."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from facts_of import facts, watching

SIZE, LENGTH, ROWS, WIDTH = 23, 12, 6, 16
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Loss = Callable[[nn.Module, Tensor], Tensor]


def below(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


class Decoder(nn.Module):
    """One layer of attention between an embedding and the logits."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(SIZE, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, SIZE)
        self.attend = attend

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        parts = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(hidden).chunk(3, -1))
        logits: Tensor = self.head(hidden + self.attend(*parts).transpose(1, 2).flatten(2))
        return logits


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.rnn, self.head = nn.Embedding(SIZE, WIDTH), nn.GRU(WIDTH, WIDTH), nn.Linear(WIDTH, SIZE)

    def forward(self, ids: Tensor) -> Tensor:
        """Positions come first."""
        logits: Tensor = self.head(self.rnn(self.tokens(ids))[0])
        return logits


class Stack(nn.Module):
    """A layer of PyTorch, which attends through ``multi_head_attention_forward``."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        self.tokens, self.masked = nn.Embedding(SIZE, WIDTH), masked
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, SIZE)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]) if self.masked else None
        logits: Tensor = self.head(self.layer(self.tokens(ids), src_mask=mask))
        return logits


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=below(q.shape[-2]))


def by_added_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.zeros(1, 1, LENGTH, LENGTH).masked_fill(~below(LENGTH), torch.finfo(torch.float32).min)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[..., : q.shape[-2], : q.shape[-2]])


def in_the_open(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~below(q.shape[-2]), -math.inf)
    return scores.softmax(-1) @ v


def unmasked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def unmasked_in_the_open(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def weights(q: Tensor, k: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)


def times_a_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Masked after the softmax, and made to sum to 1 again."""
    kept = weights(q, k) * below(q.shape[-2]).float()
    return F.dropout(kept / kept.sum(-1, keepdim=True), 0.5) @ v


def a_mask_times(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (below(q.shape[-2]) * weights(q, k).to(torch.float64)).float() @ v


def filled_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.normalize(weights(q, k).masked_fill(~below(q.shape[-2]), 0.0), p=1.0, dim=-1) @ v


def where_below(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.where(below(q.shape[-2]), weights(q, k), 0.0) @ v


def where_above(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.where(~below(q.shape[-2]), 0.0, weights(q, k)) @ v


def cut_above(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhqk,bhkd->bhqd", weights(q, k).tril(-1), v)


def with_a_prefix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The first positions are seen by all."""
    kept = weights(q, k) * (below(q.shape[-2]) | (torch.arange(k.shape[-2]) < 4)).float()
    return kept / kept.sum(-1, keepdim=True) @ v


def dropped_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Nothing is masked: twice noise, a scale, and an arrangement that keeps every weight."""
    kept = 0.5 * F.dropout(F.dropout(weights(q, k), 0.5), 0.2).tril(k.shape[-2])
    return torch.einsum("bhqk,bhkd->bhqd", kept, v)


def gated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Something learned is done to the weights."""
    return (weights(q, k) * torch.sigmoid(q.mean(-1, keepdim=True) - k.mean(-1)[..., None, :])) @ v


def turned_and_masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    kept = weights(q, k).transpose(-1, -2) * below(q.shape[-2]).T
    return kept.transpose(-1, -2) @ v


def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What autograd saves is packed, as for checkpoints: reading it would run the forward again."""
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda packed: packed):
        return times_a_mask(q, k, v)


def unmasked_but_for_padding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last three keys are padding for all."""
    seen = torch.arange(k.shape[-2]) < k.shape[-2] - 3
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[None, None, None])


def text(number: int) -> Tensor:
    return torch.randint(SIZE, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(number))


def following(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def recorded(model: nn.Module, run: Path, loss: Loss = following, steps: int = 1, **settings: Any) -> Any:
    torch.manual_seed(0)
    with watching(model, run, facts=("token_targets",), **settings):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(steps):
            optimizer.zero_grad()
            loss(model, text(number)).backward()
            optimizer.step()
    return facts(run, "token_targets")


@pytest.mark.parametrize(
    ("attend", "sees"),
    [
        (causal, 0), (by_mask, 0), (by_added_mask, 0), (in_the_open, 0), (unmasked, 1), (unmasked_in_the_open, 1),
        (unmasked_but_for_padding, 1), (times_a_mask, 0), (a_mask_times, 0), (filled_after, 0), (where_below, 0),
        (where_above, 0), (cut_above, 0), (with_a_prefix, 3 / (LENGTH - 1)), (dropped_out, 1), (gated, None),
        (turned_and_masked, None), (packed, None),
    ],
)  # fmt: skip
def test_attention_that_sees_the_next_token_shows(run_path: Path, attend: Attend, sees: float | None) -> None:
    (fact,) = recorded(Decoder(attend), run_path)
    seen = {} if sees is None else {"next": pytest.approx(sees)}
    assert fact["attention"] == [{"queries": LENGTH, "keys": LENGTH, "calls": 1, **seen}]
    assert fact["embedded"] == 1  # positions are no tokens


@pytest.mark.parametrize("masked", [True, False])
def test_layers_of_pytorch_attend_to_themselves(run_path: Path, masked: bool) -> None:
    (fact,) = recorded(Stack(masked=masked), run_path)
    (call,) = fact["attention"]
    assert (call["itself"], call["next"]) == (True, 0 if masked else 1)


def same(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, 1:]).transpose(1, 2), ids[:, 1:])


def sliced(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids[:, 1:])
    return F.cross_entropy(logits[:, :-1].reshape(-1, SIZE), ids[:, 2:].reshape(-1))


def sliced_at_the_start(model: nn.Module, ids: Tensor) -> Tensor:
    """The first prediction is left out instead of the last: labels lie where their tokens are."""
    logits = model(ids[:, 1:])
    return F.cross_entropy(logits[:, 1:].reshape(-1, SIZE), ids[:, 2:].reshape(-1))


def of_log_shares(model: nn.Module, ids: Tensor) -> Tensor:
    shares = model(ids[:, 1:])[:, :-1].log_softmax(-1)
    return F.nll_loss(shares.flatten(0, 1), ids[:, 2:].flatten())


def twice(model: nn.Module, ids: Tensor) -> Tensor:
    """The labels were moved before, and are moved again, as models do that take labels."""
    logits, labels = model(ids[:, :-1]), F.pad(ids[:, 1:], (0, 1), value=-100)[:, 1:]
    return F.cross_entropy(logits.view(-1, SIZE), labels.reshape(-1))


def masked_tokens(model: nn.Module, ids: Tensor) -> Tensor:
    """Every third token is hidden, and only these are predicted."""
    ids = ids[:, 1:]
    hidden = (torch.arange(LENGTH) % 3 == 0).expand(ROWS, LENGTH)
    logits = model(ids.masked_fill(hidden, SIZE - 1))
    return F.cross_entropy(logits.flatten(0, 1), ids.masked_fill(~hidden, -100).flatten())


@pytest.mark.parametrize(
    ("loss", "where"), [(following, "next"), (same, "same"), (sliced, "next"), (sliced_at_the_start, "same"),
                        (of_log_shares, "next"), (twice, "second"), (masked_tokens, "")]
)  # fmt: skip
def test_the_move_of_the_labels_is_known(run_path: Path, loss: Loss, where: str) -> None:
    (fact,) = recorded(Decoder(causal), run_path, loss)
    (found,) = fact["losses"]
    assert {name for name, share in found["agreeing"].items() if share > 0.5} == ({where} if where else set())
    assert found["agreeing"].get(where, 1.0) == 1.0
    assert found["length"] == LENGTH


def test_positions_may_come_first(run_path: Path) -> None:
    (fact,) = recorded(Recurrent(), run_path, lambda model, ids: F.cross_entropy(
        model(ids[:, :-1].T.contiguous()).view(-1, SIZE), ids[:, 1:].T.reshape(-1)))  # fmt: skip
    (found,) = fact["losses"]
    assert (found["axis"], found["length"], found["agreeing"]["next"]) == (0, LENGTH, 1.0)
    assert fact["recurrent"] == [False]
    assert fact["attention"] == []


def test_few_steps_are_looked_at(run_path: Path) -> None:
    assert len(recorded(Decoder(causal), run_path, steps=20)) == len([1, 2, 3, 4, 8, 16])


@pytest.mark.parametrize(
    "pick",
    [
        lambda logits: logits[:, torch.arange(LENGTH).flip(0)],
        lambda logits: logits.index_select(1, torch.arange(LENGTH).flip(0)),
        lambda logits: logits.flip(1),
        lambda logits: logits.roll(1, 1),
        lambda logits: F.pad(logits[:, :-1], (0, 0, 1, 0)),
        lambda logits: logits[:, torch.arange(LENGTH - 1)],
    ],
)
def test_predictions_of_unknown_place_are_left_out(run_path: Path, pick: Callable[[Tensor], Tensor]) -> None:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        picked = pick(model(ids[:, :-1]))
        return F.cross_entropy(picked.flatten(0, 1), ids[:, 1 : picked.shape[1] + 1].flatten())

    assert recorded(Decoder(causal), run_path, loss) == []


def test_no_function_stays_wrapped(run_path: Path) -> None:
    before = F.scaled_dot_product_attention, F.multi_head_attention_forward, torch.softmax, Tensor.softmax
    within: list[Any] = []

    def noticing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        within.append(F.scaled_dot_product_attention)
        return causal(q, k, v)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        value = following(model, ids)
        after = F.scaled_dot_product_attention, F.multi_head_attention_forward, torch.softmax, Tensor.softmax
        assert after == before
        return value

    recorded(Decoder(noticing), run_path, loss, steps=6)
    assert [function is before[0] for function in within] == [False] * 4 + [True] * 2


def test_weights_are_the_same_with_and_without(tmp_path: Path) -> None:
    trained = []
    for number, chosen in enumerate(((), ("token_targets",))):
        torch.manual_seed(0)
        model = Decoder(in_the_open)
        with watching(model, tmp_path / str(number), facts=chosen):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(4):
                optimizer.zero_grad()
                following(model, text(step)).backward()
                optimizer.step()
        trained.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(map(torch.equal, *trained))
