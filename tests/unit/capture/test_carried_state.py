"""What a model returned before and gets back is its state, and not its input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from facts_of import facts, watching

_UNITS, _TOKENS = 16, 24
State = Any


class Language(nn.Module):
    """A small model of tokens; ``forward`` takes its arguments as a variant says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_TOKENS, _UNITS)
        self.recurrent: Any = getattr(nn, kind)(_UNITS, _UNITS) if kind != "hand" else nn.Linear(2 * _UNITS, _UNITS)
        self.out = nn.Linear(_UNITS, _TOKENS)

    def forward(self, tokens: Tensor, hidden: State) -> tuple[Tensor, State]:
        embedded = self.embedding(tokens)
        if isinstance(self.recurrent, nn.Linear):
            for at in range(len(tokens)):
                hidden = torch.tanh(self.recurrent(torch.cat([embedded[at], hidden], 1)))
            return self.out(hidden).expand(len(tokens), -1, -1), hidden
        out, hidden = self.recurrent(embedded, hidden)
        return self.out(out), hidden


class StateFirst(nn.Module):
    """The same with the state before the tokens, as an argument and as a result."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Language("hand")

    def forward(self, hidden: State, tokens: Tensor) -> tuple[State, Tensor]:
        out, hidden = self.inner(tokens, hidden)
        return hidden, out


def _detached(state: State) -> State:
    return state.detach() if isinstance(state, Tensor) else tuple(_detached(each) for each in state)


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape)


def _call(model: nn.Module, tokens: Tensor, state: State) -> tuple[Tensor, State]:
    found: tuple[Tensor, State] = model(tokens, state)
    return found


def _by_keyword(model: nn.Module, tokens: Tensor, state: State) -> tuple[Tensor, State]:
    found: tuple[Tensor, State] = model(hidden=state, tokens=tokens)
    return found


def _copied(model: nn.Module, tokens: Tensor, state: State) -> tuple[Tensor, State]:
    found: tuple[Tensor, State] = model(tokens, state * 1.0)
    return found


def _reversed(model: nn.Module, tokens: Tensor, state: State) -> tuple[Tensor, State]:
    state, out = model(state, tokens)
    return out, state


VARIANTS: dict[str, tuple[Callable[[], nn.Module], Callable[[], State], Callable[..., tuple[Tensor, State]]]] = {
    "LSTM": (lambda: Language("LSTM"), lambda: (_zeros(1, 8, _UNITS), _zeros(1, 8, _UNITS)), _call),
    "GRU": (lambda: Language("GRU"), lambda: _zeros(1, 8, _UNITS), _call),
    "written by hand": (lambda: Language("hand"), lambda: _zeros(8, _UNITS), _call),
    "keyword": (lambda: Language("hand"), lambda: _zeros(8, _UNITS), _by_keyword),
    "copied": (lambda: Language("hand"), lambda: _zeros(8, _UNITS), _copied),
    "state first": (StateFirst, lambda: _zeros(8, _UNITS), _reversed),
}


def _train(run: Path, variant: str) -> None:
    make, start, call = VARIANTS[variant]
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with watching(model, run):
        state = start()
        for _ in range(6):
            tokens = torch.randint(_TOKENS, (5, 8))
            out, state = call(model, tokens, _detached(state))
            loss = F.cross_entropy(out.flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_tokens_are_the_input_of_a_model_that_gets_its_state_back(run_path: Path, variant: str) -> None:
    _train(run_path, variant)
    sketches = facts(run_path, "input_sketch")[2:]  # zeros of the first call were not returned before
    assert sketches
    assert all(sketch["dtype"] == "int64" for sketch in sketches)


def test_batches_are_compared_without_the_state(run_path: Path) -> None:
    torch.manual_seed(0)
    model = Language("GRU")
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tokens = torch.randint(_TOKENS, (5, 8))
    with watching(model, run_path):
        state = _zeros(1, 8, _UNITS)
        for _ in range(6):
            out, state = model(tokens, state.detach())
            optimizer.zero_grad()
            F.cross_entropy(out.flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
    hashes = [fact["hashes"][0] for fact in facts(run_path, "batch")[1:]]
    assert len(hashes) > 2
    assert len(set(hashes)) == 1


def test_what_a_model_gets_beside_nothing_else_is_its_input(run_path: Path) -> None:
    """A simulation that is rolled out has one argument, its last result."""
    torch.manual_seed(0)
    model = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with watching(model, run_path):
        state = torch.randn(16, 6)
        for _ in range(5):
            state = model(state.detach())
            optimizer.zero_grad()
            (state - 1).square().mean().backward()
            optimizer.step()
    assert len([sketch for sketch in facts(run_path, "input_sketch") if sketch["dtype"] == "float32"]) == 5


def test_memory_that_is_used_again_is_no_state(run_path: Path) -> None:
    """The input may lie where a result was that is gone."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, noisy: Tensor, level: Tensor) -> Tensor:
            out: Tensor = self.inner(noisy) * (1 + level)[:, None]
            return out

    denoiser = Denoiser()
    with watching(denoiser, run_path):
        for _ in range(8):
            loss = denoiser(torch.randn(512, 64), torch.rand(512)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            del loss
    sketches = facts(run_path, "input_sketch")
    assert [sketch["shape"] for sketch in sketches] == [[512, 64]] * len(sketches)
