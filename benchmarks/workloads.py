"""The training runs that are measured, each as a function that makes one training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Training:
    """A model as its loop calls it, its optimizer, if it has one, and what makes one step of it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    step: Callable[[], None]


class Block(nn.Module):
    """One layer of a decoder: causal self-attention, then a feed-forward part, each behind a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` and the result: (batch, sequence, width)."""
        batch, sequence, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, sequence, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, sequence, width))
        result: Tensor = x + self.down(self.gelu(self.up(self.norm2(x))))
        return result


def _normalized(inputs: int, outputs: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


class Residual(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_normalized(width, width), _normalized(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` and the result: (batch, width, height, width of the image)."""
        result: Tensor = x + self.body(x)
        return result


class Decoder(nn.Module):
    """A small language model over ``vocabulary`` tokens."""

    def __init__(
        self, *, layers: int = 4, width: int = 128, heads: int = 4, sequence: int = 64, vocabulary: int = 256
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token for ``tokens``: (batch, sequence) to (batch, sequence, vocabulary)."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def mlp() -> Training:
    """A perceptron 784-512-512-10 at batch 64 with SGD and momentum."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(64, 784), torch.randint(0, 10, (64,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return Training(model, optimizer, step)


def mlp_by_hand() -> Training:
    """The same perceptron, whose weights the script updates itself, without momentum."""
    model = mlp().model
    images, labels = torch.randn(64, 784), torch.randint(0, 10, (64,))

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.01)

    return Training(model, None, step)


def convolutional() -> Training:
    """A residual network of 6 convolutions with batch normalisation, at batch 32 of 3x16x16 images, with SGD."""
    torch.manual_seed(0)
    model = nn.Sequential(
        _normalized(3, 32), Residual(32), nn.MaxPool2d(2), _normalized(32, 64), Residual(64), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = torch.randn(32, 3, 16, 16), torch.randint(0, 10, (32,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return Training(model, optimizer, step)


def transformer() -> Training:
    """A decoder of 4 layers and width 128 at batch 16 and sequence 64 with AdamW."""
    torch.manual_seed(0)
    return _language_model(Decoder())


def compiled_transformer() -> Training:
    """The same through ``torch.compile``; each call has graphs of its own, and compiles at its first step."""
    torch.manual_seed(0)
    model = torch.compile(Decoder(), **_APART)
    assert isinstance(model, nn.Module)
    return _language_model(model)


def _language_model(model: nn.Module) -> Training:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(0, 256, (16, 65))

    def step() -> None:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return Training(model, optimizer, step)


def large_transformer(
    device: str, *, layers: int = 12, width: int = 768, sequence: int = 512, vocabulary: int = 32768
) -> Training:
    """A decoder for a GPU: 136 million parameters at batch 16 with fused AdamW and autocast to bfloat16."""
    torch.manual_seed(0)
    model = Decoder(layers=layers, width=width, heads=width // 64, sequence=sequence, vocabulary=vocabulary).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    tokens = torch.randint(0, vocabulary, (16, sequence + 1), device=device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    return Training(model, optimizer, step)


#: Each compiled model has graphs of its own, although all are of one class. (PyTorch's annotations lack the argument.)
_APART: dict[str, Any] = {"isolate_recompiles": True}

#: What runs on the CPU, by the name in tables.
WORKLOADS: dict[str, Callable[[], Training]] = {
    "mlp": mlp,
    "convolutional": convolutional,
    "transformer": transformer,
}
