"""Four texts a step, of a classifier whose large vocabulary Adam updates as a whole. The twin has 512."""

import torch
from torch import nn

from task import CLASSES, SLOW, train_step

BATCH, WORDS, LENGTH, WIDTH = 4 if SLOW else 512, 32_000, 16, 512


def texts(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Words, most of them rare as in any language, and the class of each text, which all its words have."""
    labels = torch.randint(0, CLASSES, (count,))
    ranks = ((WORDS / CLASSES) ** torch.rand(count, LENGTH)).long() - 1
    return ranks * CLASSES + labels[:, None], labels


model = nn.Sequential(
    nn.EmbeddingBag(WORDS, 32), nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
    nn.Linear(WIDTH, CLASSES),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for _ in range(300):
    train_step(model, optimizer, *texts(BATCH))
