"""A small decoder of the kind of GPT, on the docstrings of PyTorch, with attention written in the open."""

import inspect
import math

import torch
from torch import nn

from zoo import Zoo

PROGRAM = {
    "task": "characters of docstrings",
    "architecture": "transformer decoder",
    "healthy": {
        "plain": "AdamW, warm-up and cosine decay, clipping at 1, two micro-batches per update",
        "tied": "Adam with warm-up, tied embeddings, bfloat16 autocast",
    },
    "faults": {
        "scores_not_scaled_and_queries_times_twenty": ("attention_logits_explode", "plain"),
        "rate_that_grows_queries_and_keys": ("attention_logits_explode", "tied"),
        "full_rate_at_once": ("warmup_missing", "plain"),
        "float16_without_scaler": ("fp16_overflow", "tied"),
        "shifted_by_random_offsets": ("labels_shuffled", "plain"),
        "normal_weights": ("initialization_too_large", "plain"),
    },
}
STEPS = 200
LENGTH = 48
WIDTH = 64
zoo = Zoo(PROGRAM)

found = "\n".join(inspect.getdoc(value) or "" for _, value in sorted(vars(torch).items()) if callable(value))
characters = torch.tensor([min(ord(character), 127) for character in found[:300_000]])
split = int(0.9 * len(characters))
train, valid = characters[:split], characters[split:]


def batch(data, size):
    starts = torch.randint(len(data) - LENGTH - 40, (size,))
    shift = torch.randint(2, 40, ()).item() if zoo.has("shifted_by_random_offsets") else 1
    inputs = torch.stack([data[start : start + LENGTH] for start in starts])
    return inputs, torch.stack([data[start + shift : start + shift + LENGTH] for start in starts])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())

    def forward(self, hidden):
        batch_size, length, _ = hidden.shape
        q, k, v = (part.view(batch_size, length, 4, -1).transpose(1, 2) for part in self.qkv(hidden).chunk(3, dim=-1))
        scores = q @ k.transpose(-1, -2)
        if not zoo.has("scores_not_scaled_and_queries_times_twenty"):
            scores = scores / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        mixed = scores.softmax(dim=-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden):
        hidden = hidden + self.attention(self.norm_1(hidden))
        return hidden + self.mlp(self.norm_2(hidden))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128, bias=False)
        self.apply(self._initialized)
        if zoo.variant == "tied":
            self.head.weight = self.tokens.weight

    def _initialized(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=1.0 if zoo.has("normal_weights") else 0.02)

    def forward(self, inputs, targets=None):
        hidden = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        if targets is None:
            return logits, None
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


model = GPT()
if zoo.has("scores_not_scaled_and_queries_times_twenty"):
    for block in model.blocks:
        block.attention.qkv.weight.data[: 2 * WIDTH] *= 50
rate = 3e-3
if zoo.has("full_rate_at_once"):
    rate = 0.1
if zoo.has("rate_that_grows_queries_and_keys"):
    rate = 0.05
optimizer = (torch.optim.Adam if zoo.variant == "tied" else torch.optim.AdamW)(model.parameters(), lr=rate)


def factor(step):
    if zoo.has("full_rate_at_once"):
        return 1.0
    warm = min(1.0, (step + 1) / 40)
    return warm * (0.55 + 0.45 * math.cos(math.pi * step / STEPS)) if zoo.variant == "plain" else warm


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
accumulated = 2 if zoo.variant == "plain" else 1
half = torch.float16 if zoo.has("float16_without_scaler") else torch.bfloat16
if zoo.has("float16_without_scaler"):
    model.head.weight.data *= 200
    model.norm.weight.data *= 50

for step in range(STEPS):
    optimizer.zero_grad(set_to_none=True)
    for _ in range(accumulated):
        inputs, targets = batch(train, 8)
        with torch.autocast("cpu", dtype=half, enabled=zoo.variant == "tied"):
            _, loss = model(inputs, targets)
        (loss / accumulated).backward()
    if zoo.variant == "plain" and not zoo.has("full_rate_at_once"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    zoo.trained(step, loss.item())
    if step % 50 == 49:
        model.eval()
        with torch.no_grad():
            losses = [model(*batch(valid, 8))[1].item() for _ in range(4)]
        model.train()
        zoo.validated(step, sum(losses) / len(losses))
        print(f"iter {step + 1}: loss {loss.item():.4f}, val {sum(losses) / len(losses):.4f}")


@zoo.measured_by
def skill():
    model.eval()
    torch.manual_seed(0)
    starts = torch.randint(len(valid) - LENGTH - 1, (128,))
    inputs = torch.stack([valid[start : start + LENGTH] for start in starts])
    targets = torch.stack([valid[start + 1 : start + 1 + LENGTH] for start in starts])
    with torch.no_grad():
        right = (model(inputs)[0].argmax(dim=-1) == targets).float().mean().item()
    most_frequent = torch.bincount(valid).max().item() / len(valid)
    return (right - most_frequent) / (1 - most_frequent)
