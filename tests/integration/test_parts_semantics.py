"""Training runs out of the ordinary with everything captured: the same numbers as without, and no fault."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import watchglass
from watchglass import open_run

EVERYTHING = (
    "all", "model_input", "input_image", "input_sequence", "input_gradients", "relu_input", "relu_output", "tanh_input",
    "sigmoid_input", "attention", "router", "logsumexp",
)  # fmt: skip
WIDTH, CLASSES = 8, 4


class Block(nn.Module):
    """Attention and functional activations around a body of one's choice."""

    def __init__(self, body: Callable[[Block, Tensor], Tensor] = lambda block, x: block.work(x)) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, 2, dropout=0.2, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
        self.bend = nn.Linear(WIDTH, WIDTH)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.body = body

    def work(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.bend(x)) + self.attend(x, x, x)[0]
        return self.relu(self.layer(x) + 0.1)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self, x).mean(1))  # type: ignore[no-any-return]


def checkpointed(reentrant: bool) -> Callable[[Block, Tensor], Tensor]:
    def body(block: Block, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return block.work(x)
        return checkpoint(block.work, x + block.bend(x), use_reentrant=reentrant)  # type: ignore[no-any-return]

    return body


def caught(block: Block, x: Tensor) -> Tensor:
    """A part of the forward raises, and the model goes on without it."""
    try:
        block.attend(x, x, x[:, :, :-1])
    except (AssertionError, RuntimeError):
        pass
    return block.work(x)


def copied(block: Block, x: Tensor) -> Tensor:
    copy.deepcopy(block.bend)
    torch.save(block.bend.state_dict(), io.BytesIO())
    return block.work(x)


def inference_inside(block: Block, x: Tensor) -> Tensor:
    with torch.inference_mode():
        block.work(x)
    return block.work(x)


def twice(block: Block, x: Tensor) -> Tensor:
    return block.work(block.work(x))


def packed(block: Block, x: Tensor) -> Tensor:
    sequences = pack_padded_sequence(x, [3, 2, 1, 3], batch_first=True, enforce_sorted=False)
    return block.work(pad_packed_sequence(block.recurrent(sequences)[0], batch_first=True)[0])  # type: ignore[operator]


BODIES = {
    "as usual": lambda block, x: block.work(x),
    "checkpointed": checkpointed(False),
    "checkpointed, reentrant": checkpointed(True),
    "raises inside": caught,
    "copied inside": copied,
    "inference inside": inference_inside,
    "a module called twice": twice,
    "packed sequences": packed,
}


def run(body: Any, path: Path | None, precision: torch.dtype | None) -> tuple[list[float], list[Tensor]]:
    torch.manual_seed(5)
    model = Block(body)
    model.recurrent = nn.LSTM(WIDTH, WIDTH, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watching = None
    if path is not None:
        modes = {"eval": {"save_interval": 1}}
        watching = watchglass.watch(
            model, run=path, save_interval=1, strict=True, collections=EVERYTHING, modes=modes, save_raw=True
        )
    losses = []
    generator = torch.Generator().manual_seed(6)
    for number in range(4):
        x, labels = torch.randn(4, 3, WIDTH, generator=generator), torch.randint(0, CLASSES, (4,), generator=generator)
        optimizer.zero_grad()
        with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
            loss = F.cross_entropy(model(x.requires_grad_()), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if number % 2:
            model.eval()
            with torch.inference_mode():
                losses.append(F.cross_entropy(model(x.detach()), labels).item())
            model.train()
    if watching is not None:
        watching.close()
    return losses, [*model.state_dict().values(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("precision", [None, torch.bfloat16], ids=["float32", "autocast"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_odd_training_runs_are_the_same_bit_for_bit(tmp_path: Path, body: Any, precision: torch.dtype | None) -> None:
    expected, watched = run(body, None, precision), run(body, tmp_path / "run", precision)
    assert watched[0] == expected[0]
    assert all(map(torch.equal, watched[1], expected[1]))
    found = open_run(tmp_path / "run")
    assert found.steps() == [0, 1, 2, 3]
    assert not found.facts("capture_fault")
    assert not found.problems
    assert {"label", "input.0", "gradient/input.0", "head.input.0", "optimizer/exp_avg/head.weight"} <= set(
        found.tensor_names()
    )


def test_a_forward_that_raises_now_and_then_is_left_behind(tmp_path: Path) -> None:
    model = Block(lambda block, x: block.work(x) / (x.shape[0] % 2 or nothing()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def nothing() -> int:
        raise RuntimeError("an even batch")

    with watchglass.watch(model, run=tmp_path / "run", save_interval=2, strict=True, collections=EVERYTHING):
        for size in (1, 2, 3, 4, 5, 6, 7):
            try:
                loss = F.cross_entropy(model(torch.randn(size, 3, WIDTH)), torch.zeros(size, dtype=torch.long))
            except RuntimeError:
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    found = open_run(tmp_path / "run")
    assert found.tensor("label").steps() == [0, 2]
    assert not found.facts("capture_fault")
