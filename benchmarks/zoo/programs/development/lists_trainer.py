"""The most frequent sign of a list, by a transformer encoder and a trainer class as libraries have it."""

import math

import torch
from torch import nn

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "lists of signs",
    "architecture": "transformer with a trainer class",
    "healthy": {
        "pre_norm": "AdamW with two parameter groups, linear warm-up and decay, two micro-batches, clipping",
        "post_norm": "Adam with warm-up, bfloat16 autocast",
    },
    "faults": {
        "full_rate_at_once": ("warmup_missing", "post_norm"),
        "no_scale_and_a_rate_of_a_tenth": ("attention_logits_explode", "post_norm"),
        "labels_of_the_next_batch": ("labels_shuffled", "pre_norm"),
        "normal_weights": ("initialization_too_large", "pre_norm"),
    },
}
SIGNS, LENGTH, WIDTH = 6, 15, 32
zoo = Zoo(PROGRAM)


def lists(count):
    labels = torch.randint(SIGNS, (count,))
    signs = torch.randint(SIGNS, (count, LENGTH))
    return torch.where(torch.rand(count, LENGTH) < 0.35, labels[:, None], signs), labels


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def attend(self, hidden):
        split = (len(hidden), LENGTH, 4, WIDTH // 4)
        q, k, v = (each(hidden).view(split).transpose(1, 2) for each in (self.query, self.key, self.value))
        scale = 1.0 if "scale" in zoo.fault else 1 / math.sqrt(WIDTH // 4)
        weights = (scale * q @ k.transpose(-1, -2)).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def forward(self, hidden):
        if zoo.variant == "pre_norm":
            hidden = hidden + self.attend(self.norm_1(hidden))
            return hidden + self.mlp(self.norm_2(hidden))
        hidden = self.norm_1(hidden + self.attend(hidden))
        return self.norm_2(hidden + self.mlp(hidden))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(SIGNS, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(3)))
        self.head = nn.Linear(WIDTH, SIGNS)

    def forward(self, signs):
        return self.head(self.layers(self.embedding(signs) + self.position).mean(dim=1))


class Trainer:
    def __init__(self, model, train, valid, *, rate, steps, warmup, accumulation, size=16):
        self.model, self.train_set, self.valid_set = model, train, valid
        self.steps, self.accumulation, self.size = steps, accumulation, size
        decayed = [each for each in model.parameters() if each.dim() > 1]
        others = [each for each in model.parameters() if each.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = (torch.optim.AdamW if zoo.variant == "pre_norm" else torch.optim.Adam)(groups, lr=rate)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min((step + 1) / max(1, warmup), (steps + 10 - step) / (steps + 10))
        )

    def compute_loss(self, signs, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=zoo.variant == "post_norm"):
            logits = self.model(signs)
        return nn.functional.cross_entropy(logits.float(), labels)

    def evaluate(self, step):
        self.model.eval()
        with torch.no_grad():
            loss = self.compute_loss(*self.valid_set).item()
        self.model.train()
        zoo.validated(step, loss)
        print({"eval_loss": round(loss, 4), "step": step})

    def train(self):
        for step in range(self.steps):
            self.optimizer.zero_grad()
            for _ in range(self.accumulation):
                rows = torch.randint(len(self.train_set[0]), (self.size,))
                loss = self.compute_loss(self.train_set[0][rows], self.train_set[1][rows])
                (loss / self.accumulation).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            zoo.trained(step, loss.item())
            if step % 60 == 59:
                self.evaluate(step + 1)


model = Encoder()
if zoo.has("normal_weights"):
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter)
train, valid = lists(3000), lists(300)
if zoo.has("labels_of_the_next_batch"):
    train = (train[0], train[1].roll(16))
rate = 0.1 if zoo.has("full_rate_at_once") or "a_tenth" in zoo.fault else 2e-3
warmup = 0 if zoo.has("full_rate_at_once") else 40
accumulation = 2 if zoo.variant == "pre_norm" else 1
Trainer(model, train, valid, rate=rate, steps=240, warmup=warmup, accumulation=accumulation).train()


@zoo.measured_by
def skill():
    model.eval()
    signs, labels = lists(1000)
    with torch.no_grad():
        return above_chance((model(signs).argmax(dim=1) == labels).float().mean().item(), 1 / SIGNS)
