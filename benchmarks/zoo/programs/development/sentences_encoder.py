"""Which of two packages a sentence of documentation is from, by a transformer encoder over padded words."""

import inspect
import json
import re
import statistics
import zlib

import numpy as np
import torch
from torch import nn

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "sentences of documentation",
    "architecture": "transformer encoder",
    "healthy": {
        "plain": "AdamW, warm-up, mean over words that are no padding",
        "token": "Adam with warm-up, a class token, label smoothing",
    },
    "faults": {
        "padding_in_mean_and_attention": ("padding_leaks", "plain"),
        "padding_in_attention_only": ("padding_leaks", "token"),
        "dropout_of_95_percent": ("dropout_too_high", "plain"),
        "full_rate_from_the_start": ("warmup_missing", "token"),
        "schedule_of_epochs_per_batch": ("scheduler_per_batch", "plain"),
        "softmax_then_cross_entropy": ("double_softmax", "plain"),
    },
}
STEPS = 300
VOCABULARY = 2000
PADDING = 0
zoo = Zoo(PROGRAM)


def sentences(module):
    for _, value in sorted(vars(module).items(), key=lambda item: item[0]):
        documentation = inspect.getdoc(value) if callable(value) else None
        for sentence in re.split(r"(?<=[.:])\s+|\n\n", documentation or ""):
            words = re.findall(r"[a-z_]+", sentence.lower())
            if 3 <= len(words) <= 60:
                yield [1 + zlib.crc32(word.encode()) % (VOCABULARY - 2) for word in words]


texts = [(words, 0) for words in sentences(np)] + [(words, 1) for words in sentences(torch)]
order = torch.randperm(len(texts)).tolist()
texts = [texts[i] for i in order][:4000]
longest = 400 if "padding" in zoo.fault else 60
tokens = torch.full((len(texts), longest), PADDING)
for row, (words, _) in enumerate(texts):
    tokens[row, : len(words)] = torch.tensor(words)
labels = torch.tensor([label for _, label in texts])
x, y, x_valid, y_valid = tokens[500:], labels[500:], tokens[:500], labels[:500]


class Encoder(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        dropout = 0.95 if zoo.has("dropout_of_95_percent") else 0.1
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.randn(longest + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout, batch_first=True, norm_first=zoo.variant == "plain")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.head = nn.Linear(width, 2)

    def forward(self, words):
        padding = words == PADDING
        hidden = self.embedding(words)
        if zoo.variant == "token":
            hidden = torch.cat([self.token.expand(len(words), -1, -1), hidden], dim=1)
            padding = torch.cat([torch.zeros(len(words), 1, dtype=torch.bool), padding], dim=1)
        hidden = hidden + self.position[: hidden.shape[1]]
        hidden = self.layers(hidden, src_key_padding_mask=None if "padding" in zoo.fault else padding)
        if zoo.variant == "token":
            return self.head(hidden[:, 0])
        if zoo.has("padding_in_mean_and_attention"):
            return self.head(hidden.mean(dim=1))
        kept = (~padding).unsqueeze(-1)
        return self.head((hidden * kept).sum(dim=1) / kept.sum(dim=1))


model = Encoder()
rate = 0.02 if zoo.has("full_rate_from_the_start") else 2e-3
optimizer = (torch.optim.Adam if zoo.variant == "token" else torch.optim.AdamW)(model.parameters(), lr=rate)
if zoo.has("full_rate_from_the_start"):
    scheduler = None
elif zoo.has("schedule_of_epochs_per_batch"):
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [4, 8, 12], gamma=0.1)
else:
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 60))
smoothing = 0.1 if zoo.variant == "token" else 0.0

for step in range(STEPS):
    model.train()
    rows = torch.randint(len(x), (16,))
    # Only as long as the longest sentence of the batch.
    words = x[rows]
    if "padding" not in zoo.fault:
        words = words[:, : int((words != PADDING).sum(dim=1).max())]
    outputs = model(words)
    if zoo.has("softmax_then_cross_entropy"):
        outputs = outputs.softmax(dim=1)
    loss = nn.functional.cross_entropy(outputs, y[rows], label_smoothing=smoothing)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
    zoo.trained(step, loss.item())
    if step % 100 == 99:
        model.eval()
        with torch.no_grad():
            losses = [
                nn.functional.cross_entropy(model(part), target).item()
                for part, target in zip(x_valid.split(100), y_valid.split(100))
            ]
        validation = statistics.mean(losses)
        zoo.validated(step, validation)
        print(json.dumps({"step": step + 1, "loss": loss.item(), "validation": validation}))


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part).argmax(dim=1) for part in x_valid.split(100)])
    chance = torch.bincount(y_valid).max().item() / len(y_valid)
    return above_chance((found == y_valid).float().mean().item(), chance)
