"""A tag for each word of a sentence, of sentences of unequal length: embeddings and a bidirectional GRU."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "tags of words",
    "architecture": "sequence tagger",
    "healthy": {
        "adam": "Adam, padding ignored by the loss",
        "sgd": "SGD with momentum and clipping, two micro-batches per update",
        "fixed_vectors": "AdamW, embeddings are frozen",
    },
    "faults": {
        "loss_of_padding": ("padding_leaks", "sgd"),
        "softmax_before_cross_entropy": ("double_softmax", "sgd"),
        "tags_of_other_sentences": ("labels_shuffled", "adam"),
        "summed_over_words": ("loss_summed", "sgd"),
        "dropout_of_97_percent": ("dropout_too_high", "adam"),
    },
}
WORDS, TAGS, PADDING = 60, 6, 0
LONGEST = 50
STEPS = 200
zoo = Zoo(PROGRAM)
usual = torch.randint(1, TAGS, (WORDS,))


def sentences(count):
    """A word has its usual tag, but the next one after a word of the first ten."""
    lengths = torch.randint(4, 13, (count,))
    words = torch.randint(1, WORDS, (count, LONGEST))
    words = words * (torch.arange(LONGEST) < lengths[:, None])
    after = torch.cat([torch.zeros(count, 1, dtype=torch.long), words[:, :-1]], dim=1)
    tags = torch.where((after > 0) & (after < 20), usual[words] % (TAGS - 1) + 1, usual[words])
    return words, tags * (words != PADDING)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 24, padding_idx=PADDING)
        if zoo.variant == "fixed_vectors":
            self.embedding.weight.requires_grad_(False)
        self.gru = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.97 if zoo.has("dropout_of_97_percent") else 0.0)
        self.head = nn.Linear(48, TAGS)

    def forward(self, words):
        logits = self.head(self.dropout(self.gru(self.embedding(words))[0]))
        return logits.softmax(dim=-1) if zoo.has("softmax_before_cross_entropy") else logits


model = Tagger()
trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
if zoo.variant == "sgd":
    optimizer = torch.optim.SGD(trainable, lr=0.3, momentum=0.9)
elif zoo.variant == "adam":
    optimizer = torch.optim.Adam(trainable, lr=5e-3)
else:
    optimizer = torch.optim.AdamW(trainable, lr=5e-3)
accumulated = 2 if zoo.variant == "sgd" else 1
x, y = sentences(2000)
x_valid, y_valid = sentences(300)
if zoo.has("tags_of_other_sentences"):
    y = torch.where(x != PADDING, usual[torch.randint(1, WORDS, x.shape)], 0)


def objective(words, tags):
    if not zoo.has("loss_of_padding"):
        longest = int((words != PADDING).sum(dim=1).max())
        words, tags = words[:, :longest], tags[:, :longest]
    ignored = -100 if zoo.has("loss_of_padding") else PADDING
    reduction = "sum" if zoo.has("summed_over_words") else "mean"
    return F.cross_entropy(model(words).transpose(1, 2), tags, ignore_index=ignored, reduction=reduction)


for step in range(STEPS):
    model.train()
    optimizer.zero_grad()
    for _ in range(accumulated):
        rows = torch.randint(len(x), (16,))
        loss = objective(x[rows], y[rows]) / accumulated
        loss.backward()
    if zoo.variant == "sgd" and not zoo.has("summed_over_words"):
        nn.utils.clip_grad_norm_(trainable, 1.0)
    optimizer.step()
    zoo.trained(step, loss.item() * accumulated)
    if step % 40 == 39:
        model.eval()
        with torch.no_grad():
            validation = objective(x_valid, y_valid).item()
        zoo.validated(step, validation)
        print(f"step {step + 1}: {loss.item() * accumulated:.4f}, validation {validation:.4f}")


@zoo.measured_by
def skill():
    model.eval()
    kept = x_valid[:, :13] != PADDING
    with torch.no_grad():
        right = (model(x_valid[:, :13]).argmax(dim=2) == y_valid[:, :13])[kept].float().mean().item()
    return above_chance(right, 1 / (TAGS - 1))
