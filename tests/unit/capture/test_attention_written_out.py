"""Attention that a script writes out: the input of its softmax is observed, in captured forwards only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from watchglass import open_run


class Attention(nn.Module):
    """Two heads over sequences of inputs."""

    def __init__(self, softmax: Callable[[Tensor], Tensor], heads: bool = True) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 3)
        self.softmax, self.heads = softmax, heads
        self.seen: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        query, key, value = self.qkv(inputs).chunk(3, -1)
        if self.heads:
            query, key, value = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in (query, key, value))
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
        self.seen = scores.detach()
        mixed = self.softmax(scores) @ value
        return self.out((mixed.transpose(1, 2).flatten(2) if self.heads else mixed).mean(1))  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, inputs: Tensor) -> Tensor:
        return self.attention(inputs).softmax(-1)  # type: ignore[no-any-return]


WAYS = {
    "method": lambda scores: scores.softmax(-1),
    "torch": lambda scores: torch.softmax(scores, dim=-1),
    "functional": lambda scores: F.softmax(scores, dim=3 if scores.dim() == 4 else 2),
    "module": nn.Softmax(dim=-1),
}


def train(model: Model, run: Path, steps: int = 4, interval: int = 2) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    settings = {"collections": ["attention"], "save_interval": interval, "strict": True}
    with watchglass.watch(model, run=run, **settings):
        for _ in range(steps):
            loss = model(torch.randn(4, 5, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize("heads", [True, False], ids=["heads", "one head"])
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_write_a_softmax_is_seen(tmp_path: Path, way: str, heads: bool) -> None:
    before = torch.softmax, F.softmax, "softmax" in vars(Tensor)
    model = Model(Attention(WAYS[way], heads))
    train(model, tmp_path / "run", 1)
    run = open_run(tmp_path / "run")
    names = [name for name in run.tensor_names() if "attention_logits_max" in name]
    assert len(names) == (2 if heads else 1)
    assert model.attention.seen is not None
    scores = model.attention.seen if heads else model.attention.seen[:, None]
    for head in range(len(names)):
        path = f"attention.{'softmax.' if way == 'module' else ''}"
        found = run.tensor(f"{path}attention_logits_max.{head}").reduction(0, "max")
        assert found == pytest.approx(scores[:, head].max().item(), rel=1e-5)
    assert (torch.softmax, F.softmax, "softmax" in vars(Tensor)) == before, "nothing stays wrapped"


def test_no_other_softmax_is_taken_for_attention(tmp_path: Path) -> None:
    """Neither that of the outputs, nor one over another axis."""
    model = Model(Attention(lambda scores: scores.softmax(-2).masked_fill(scores.isinf(), 0)))
    train(model, tmp_path / "run")
    assert not [name for name in open_run(tmp_path / "run").tensor_names() if "attention" in name and "max" in name]


def test_softmax_is_wrapped_in_captured_forwards_only(tmp_path: Path) -> None:
    original, wrapped = F.softmax, []

    def softmax(scores: Tensor) -> Tensor:
        wrapped.append(F.softmax is not original)
        return F.softmax(scores, -1)

    train(Model(Attention(softmax)), tmp_path / "run", steps=5)
    assert wrapped == [True, False, True, False, True]


def test_a_forward_that_raises_leaves_nothing_wrapped(tmp_path: Path) -> None:
    original = F.softmax
    model = Model(Attention(lambda scores: scores[..., :7].log_softmax(99)))
    with pytest.raises(IndexError):
        train(model, tmp_path / "run", 1)
    assert F.softmax is original
    assert "softmax" not in vars(Tensor)
