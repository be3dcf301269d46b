"""Words of documentation read backwards, by a transformer with encoder and decoder."""

import collections
import inspect
import json
import re
import subprocess
import tarfile
import typing

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "words read backwards",
    "architecture": "transformer with encoder and decoder",
    "healthy": {
        "plain": "Adam, linear warm-up and decay by the root of the step, clipping at 1",
        "smoothed": "AdamW, warm-up, label smoothing 0.1, bfloat16 autocast",
    },
    "faults": {
        "log_softmax_over_the_batch": ("loss_on_wrong_axis", "plain"),
        "epsilon_of_one": ("adam_epsilon", "smoothed"),
        "decoder_only_optimized": ("parameter_not_in_optimizer", "plain"),
    },
}
STEPS, LONGEST, WIDTH = 450, 6, 48
PADDING, BEGIN, END = 0, 1, 2
zoo = Zoo(PROGRAM)


def words():
    """Every different word of three to six letters in the documentation of a few modules."""
    found = {}
    for module in (collections, inspect, json, re, subprocess, tarfile, typing, F, nn):
        for name in sorted(vars(module)):
            documentation = inspect.getdoc(getattr(module, name, None)) or ""
            found.update(dict.fromkeys(re.findall(r"\b[a-z]{3,6}\b", documentation)))
    return sorted(found)


def encode(word):
    return [ord(letter) - ord("a") + 3 for letter in word]


texts = words()
sources = torch.full((len(texts), LONGEST), PADDING)
targets = torch.full((len(texts), LONGEST + 2), PADDING)
for row, word in enumerate(texts):
    sources[row, : len(word)] = torch.tensor(encode(word))
    targets[row, : len(word) + 2] = torch.tensor([BEGIN, *encode(reversed(word)), END])
order = torch.randperm(len(texts))
train, valid = order[200:], order[:200]


class Reverser(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(29, WIDTH, padding_idx=PADDING)
        self.positions = nn.Parameter(torch.randn(LONGEST + 2, WIDTH) * 0.5)
        self.transformer = nn.Transformer(WIDTH, 4, 1, 1, 96, dropout=0.0, batch_first=True)
        self.output = nn.Linear(WIDTH, 29)

    def forward(self, source, target):
        padding = source == PADDING
        embedded = self.letters(source) + self.positions[: source.shape[1]]
        following = self.letters(target) + self.positions[: target.shape[1]]
        length = target.shape[1]
        causal = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
        hidden = self.transformer(
            embedded, following, tgt_mask=causal, src_key_padding_mask=padding, memory_key_padding_mask=padding
        )
        return self.output(hidden)


model = Reverser()
rate = 3e-3
if zoo.variant == "plain":
    trained = [*model.transformer.decoder.parameters(), *model.output.parameters()]
    optimizer = torch.optim.Adam(
        trained if zoo.has("decoder_only_optimized") else model.parameters(), lr=rate, betas=(0.9, 0.98)
    )
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, eps=1.0 if zoo.has("epsilon_of_one") else 1e-8)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min((step + 1) / 80, (80 / (step + 1)) ** 0.5 if zoo.variant == "plain" else 1.0)
)


def criterion(outputs, expected):
    if zoo.variant == "smoothed":
        return F.cross_entropy(outputs.transpose(1, 2), expected, ignore_index=PADDING, label_smoothing=0.1)
    log_probabilities = outputs.log_softmax(dim=0 if zoo.has("log_softmax_over_the_batch") else -1)
    picked = log_probabilities.gather(-1, expected.unsqueeze(-1)).squeeze(-1)
    kept = expected != PADDING
    return -(picked * kept).sum() / kept.sum()


for step in range(STEPS):
    model.train()
    rows = train[torch.randint(len(train), (48,))]
    source, target = sources[rows], targets[rows]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=zoo.variant == "smoothed"):
        loss = criterion(model(source, target[:, :-1]), target[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    zoo.trained(step, loss.item())
    if step % 90 == 89:
        model.eval()
        with torch.no_grad():
            validation = criterion(model(sources[valid], targets[valid, :-1]), targets[valid, 1:]).item()
        zoo.validated(step, validation)
        print(f"step {step + 1} loss {loss.item():.3f} validation {validation:.3f}")


@zoo.measured_by
def skill():
    model.eval()
    source, target = sources[valid], targets[valid]
    read = torch.full((len(source), 1), BEGIN)
    with torch.no_grad():
        for _ in range(LONGEST + 1):
            following = model(source, read)[:, -1].argmax(dim=-1, keepdim=True)
            read = torch.cat([read, following], dim=1)
    kept = target[:, 1:] > END
    right = (read[:, 1:] == target[:, 1:])[kept].float().mean().item()
    return above_chance(right, 0.1)
