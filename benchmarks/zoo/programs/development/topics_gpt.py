"""A small decoder on the topics of Python's own help, by characters, with fused attention."""

import math
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Zoo

PROGRAM = {
    "task": "characters of help topics",
    "architecture": "transformer decoder",
    "healthy": {
        "plain": "AdamW, warm-up and cosine decay, fused attention",
        "smoothed": "AdamW with warm-up, label smoothing 0.05, clipping at 1, tied embeddings",
        "continued": "trained on one half of the text, then at a tenth of the rate on the other",
    },
    "faults": {
        "mask_left_out": ("causal_mask_missing", "plain"),
        "mask_left_out_with_smoothing": ("causal_mask_missing", "smoothed"),
        "targets_are_inputs": ("labels_not_shifted", "plain"),
        "targets_are_inputs_with_tied_embeddings": ("labels_not_shifted", "smoothed"),
        "smoothing_of_97_percent": ("label_smoothing_too_strong", "smoothed"),
        "schedule_made_anew_every_five_steps": ("learning_rate_restarts", "plain"),
        "every_eighth_batch_of_noise": ("batches_corrupted", "plain"),
        "ids_moved_by_a_padding_token": ("tokens_shifted", "continued"),
    },
}
STEPS = 260
LENGTH, WIDTH, HEADS = 40, 64, 4
zoo = Zoo(PROGRAM)

text = "\n".join(topics[name] for name in sorted(topics))[:300_000]
characters = sorted(set(text))
ids = {character: number for number, character in enumerate(characters)}
tokens = torch.tensor([ids[character] for character in text])
split = int(0.9 * len(tokens))
train, valid = tokens[:split], tokens[split:]
SIZE = len(characters) + 1


def batch(data, size, moved=0):
    starts = torch.randint(len(data) - LENGTH - 1, (size,))
    inputs = torch.stack([data[start : start + LENGTH] for start in starts]) + moved
    if "targets_are_inputs" in zoo.fault:
        return inputs, inputs
    return inputs, torch.stack([data[start + 1 : start + 1 + LENGTH] for start in starts]) + moved


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm_1(hidden)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal="mask_left_out" not in zoo.fault)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.mlp(self.norm_2(hidden))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(SIZE, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SIZE, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        if zoo.variant == "smoothed":
            self.head.weight = self.tokens.weight

    def forward(self, inputs):
        hidden = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1]))
        return self.head(self.norm(self.blocks(hidden)))


smoothing = 0.05 if zoo.variant == "smoothed" else 0.0
if zoo.has("smoothing_of_97_percent"):
    smoothing = 0.97


def loss_of(inputs, targets):
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), label_smoothing=smoothing)


def made_schedule():
    def factor(step):
        warm = min(1.0, (step + 1) / 30)
        return warm if zoo.variant == "smoothed" else warm * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = made_schedule()
moved = 0

for step in range(STEPS):
    model.train()
    data = train
    if zoo.variant == "continued":
        first = step < 200
        data = train[: split // 2] if first else train[split // 2 :]
        if step == 200:
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
            moved = 1 if zoo.has("ids_moved_by_a_padding_token") else 0
    if zoo.has("schedule_made_anew_every_five_steps") and step % 5 == 0:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] = 3e-3
        scheduler = made_schedule()
    inputs, targets = batch(data, 12, moved)
    if zoo.has("every_eighth_batch_of_noise") and step % 8 == 7:
        inputs, targets = torch.randint(SIZE, inputs.shape), torch.randint(SIZE, targets.shape)
    optimizer.zero_grad()
    loss = loss_of(inputs, targets)
    loss.backward()
    if zoo.variant == "smoothed":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if zoo.variant != "continued" or step < 200:
        scheduler.step()
    zoo.trained(step, loss.item())
    if step % 65 == 64:
        model.eval()
        with torch.no_grad():
            losses = [loss_of(*batch(valid, 12, moved)).item() for _ in range(4)]
        zoo.validated(step, sum(losses) / len(losses))
        print(f"step {step + 1}: loss {loss.item():.4f}, validation {sum(losses) / len(losses):.4f}")


@zoo.measured_by
def skill():
    """The likelihood of the next character, of which nothing can leak from behind."""
    model.eval()
    torch.manual_seed(0)
    starts = torch.randint(len(valid) - LENGTH - 1, (1024,))
    inputs = torch.stack([valid[start : start + LENGTH] for start in starts]) + moved
    following = torch.stack([valid[start + LENGTH] for start in starts]) + moved
    with torch.no_grad():
        surprise = F.cross_entropy(model(inputs)[:, -1], following).item()
    frequencies = torch.bincount(train, minlength=SIZE).float() + 1
    guess = F.nll_loss((frequencies / frequencies.sum()).log().repeat(1024, 1), following - moved).item()
    return 1 - surprise / guess
