"""Train a small GPT to write like Python's reference, character by character: an ordinary PyTorch script.

The text is what ``help("topics")`` shows; every installation of Python has it.

    python train.py                           learns until its end
    python train.py --no-norm --lr 0.3        explodes
    python train.py --no-norm --no-residual   hardly learns: the gradients vanish
    python train.py --characters 3000         overfits a short text
    python train.py --width 8                 underfits: the model is too small
"""

from __future__ import annotations

import argparse
import math
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONTEXT = 64


class Block(nn.Module):
    """Causal attention, then two linear layers; each is added to its input."""

    def __init__(self, width: int, heads: int, dropout: float, norm: bool, residual: bool) -> None:
        super().__init__()
        self.heads, self.residual = heads, residual
        self.norm1, self.norm2 = (nn.LayerNorm(width) if norm else nn.Identity() for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def attend(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        kept = 1.0 if self.residual else 0.0
        x = kept * x + self.dropout(self.attend(self.norm1(x)))
        return kept * x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, characters: int, args: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(characters, args.width)
        self.positions = nn.Embedding(CONTEXT, args.width)
        self.blocks = nn.Sequential(
            *(
                Block(args.width, args.heads, args.dropout, norm=args.norm, residual=args.residual)
                for _ in range(args.layers)
            )
        )
        self.norm = nn.LayerNorm(args.width) if args.norm else nn.Identity()
        self.head = nn.Linear(args.width, characters)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=args.init_std)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def texts(limit: int | None) -> tuple[Tensor, Tensor, int]:
    """Characters of training and validation as numbers, and how many different ones there are."""
    pages = [topics[name] for name in sorted(topics)]
    pages = [pages[i] for i in torch.randperm(len(pages)).tolist()]
    alphabet = sorted(set("".join(pages)))
    number = {character: i for i, character in enumerate(alphabet)}
    held = len(pages) // 8
    validation, training = (
        torch.tensor([number[c] for page in part for c in page]) for part in (pages[:held], pages[held:])
    )
    return training[:limit], validation, len(alphabet)


def batch(text: Tensor, size: int) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - CONTEXT, (size, 1))
    windows = text[starts + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, 1:]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def validate(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    model.eval()
    loss = sum(loss_of(model, *batch).item() for batch in batches) / len(batches)
    model.train()
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--init-std", type=float, default=0.05, help="standard deviation of the first weights")
    parser.add_argument("--characters", type=int, help="characters to train on, instead of all")
    parser.add_argument("--no-norm", dest="norm", action="store_false", help="leave out the normalization layers")
    parser.add_argument("--no-residual", dest="residual", action="store_false", help="leave out the residual paths")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)  # quicker for a model of this size
    torch.manual_seed(args.seed)
    training, validation, characters = texts(args.characters)
    held_out = [batch(validation, 32) for _ in range(2)]
    model = GPT(characters, args)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    warmup = max(1, args.steps // 20)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / warmup) * (0.55 + 0.45 * math.cos(math.pi * step / args.steps)),
    )
    for step in range(1, args.steps + 1):
        loss = loss_of(model, *batch(training, args.batch_size))
        optimizer.zero_grad()
        loss.backward()
        if args.clip:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        scheduler.step()
        if step % max(1, args.steps // 20) == 0:
            print(
                f"step {step}: training loss {loss.item():.3f}, validation loss {validate(model, held_out):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
