"""Vectors of words from the words around them: skip-gram with negative samples, on the documentation of NumPy."""

import inspect
import re
from collections import Counter

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn import functional as F

from zoo import Zoo

PROGRAM = {
    "task": "words of documentation",
    "architecture": "skip-gram",
    "healthy": {
        "sparse": "SparseAdam, sparse gradients of both tables",
        "dense": "Adagrad, dense gradients",
    },
    "faults": {
        "one_vector_for_all_words": ("constant_initialization", "dense"),
        "rate_of_1e_8": ("learning_rate_too_low", "sparse"),
        "pairs_at_random": ("labels_shuffled", "sparse"),
        "softmax_of_one_positive": ("wrong_loss", "dense"),
    },
}
WORDS = 600
zoo = Zoo(PROGRAM)

text = " ".join(inspect.getdoc(value) or "" for _, value in sorted(vars(np).items()) if callable(value))
words = re.findall(r"[a-z]{2,}", text.lower())[:60_000]
known = {word: place for place, (word, _) in enumerate(Counter(words).most_common(WORDS))}
tokens = torch.tensor([known[word] for word in words if word in known])
pairs = torch.cat([torch.stack([tokens[:-gap], tokens[gap:]], dim=1) for gap in (1, 2)])
pairs = pairs[torch.randperm(len(pairs))]
train, valid = pairs[2000:], pairs[:2000]
if zoo.has("pairs_at_random"):
    train = torch.stack([train[:, 0], train[torch.randperm(len(train)), 1]], dim=1)
frequency = torch.bincount(tokens, minlength=WORDS).float() ** 0.75


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Embedding(WORDS, 24, sparse=zoo.variant == "sparse")
        self.context = nn.Embedding(WORDS, 24, sparse=zoo.variant == "sparse")
        for table in (self.centre, self.context):
            nn.init.uniform_(table.weight, -0.2, 0.2)
            if zoo.has("one_vector_for_all_words"):
                nn.init.constant_(table.weight, 0.1)

    def forward(self, centre, context):
        return (self.centre(centre).unsqueeze(1) * self.context(context)).sum(dim=2)


def objective(rows):
    negative = torch.multinomial(frequency, len(rows) * 5, replacement=True).view(-1, 5)
    scores = model(rows[:, 0], torch.cat([rows[:, 1:], negative], dim=1))
    if zoo.has("softmax_of_one_positive"):
        # Forgets the negative samples.
        return F.binary_cross_entropy_with_logits(scores[:, :1], torch.ones(len(rows), 1))
    targets = torch.zeros_like(scores)
    targets[:, 0] = 1
    return F.binary_cross_entropy_with_logits(scores, targets)


model = SkipGram()
if zoo.variant == "sparse":
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=1e-8 if zoo.has("rate_of_1e_8") else 0.01)
else:
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)

for step in range(600):
    loss = objective(train[torch.randint(len(train), (128,))])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    zoo.trained(step, loss.item())
    if step % 100 == 99:
        with torch.no_grad():
            validation = objective(valid).item()
        zoo.validated(step, validation)
        print(f"step {step + 1}: loss {loss.item():.4f}, validation {validation:.4f}")


@zoo.measured_by
def skill():
    with torch.no_grad():
        near = model(valid[:, 0], valid[:, 1:]).squeeze(1)
        far = model(valid[:, 0], torch.multinomial(frequency, 2000, replacement=True).unsqueeze(1)).squeeze(1)
    truth = torch.cat([torch.ones(2000), torch.zeros(2000)])
    return 2 * roc_auc_score(truth.numpy(), torch.cat([near, far]).numpy()) - 1
