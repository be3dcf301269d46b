"""A small decoder on the words of Python's own help, with settings that people change without a second look."""

from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Zoo

PROGRAM = {
    "task": "words of help topics",
    "architecture": "transformer decoder",
    "healthy": {
        "plain": "AdamW with warm-up, learned positions",
        "clipped": "SGD with momentum, normalised before attention, clipping near the usual norm",
    },
    "faults": {
        "validated_on_training_text": ("evaluated_on_training_data", "plain"),
        "embeddings_of_deviation_eight": ("embedding_scale", "plain"),
        "embeddings_of_deviation_thirty_with_sgd": ("embedding_scale", "clipped"),
        "clipped_at_a_thousandth": ("clipped_to_nothing", "clipped"),
    },
}
STEPS = 240
LENGTH, WIDTH, MOST = 24, 64, 600
zoo = Zoo(PROGRAM)

text = " ".join(topics[name] for name in sorted(topics)).split()
counts = {}
for word in text:
    counts[word] = counts.get(word, 0) + 1
known = sorted(counts, key=lambda word: (-counts[word], word))[:MOST]
ids = {word: number + 1 for number, word in enumerate(known)}
tokens = torch.tensor([ids.get(word, 0) for word in text])
split = int(0.9 * len(tokens))
train, valid = tokens[:split], tokens[split:]


def batch(data, size):
    starts = torch.randint(len(data) - LENGTH - 1, (size,))
    rows = torch.stack([data[start : start + LENGTH + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(MOST + 1, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, MOST + 1)
        size = 8.0 if zoo.has("embeddings_of_deviation_eight") else 0.05
        size = 30.0 if zoo.has("embeddings_of_deviation_thirty_with_sgd") else size
        nn.init.normal_(self.words.weight, std=size)
        nn.init.normal_(self.positions.weight, std=0.05)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, words):
        hidden = self.words(words) + self.positions.weight
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask, is_causal=True)
        return self.head(self.norm(hidden))


def loss_of(words, following):
    return F.cross_entropy(model(words).flatten(0, 1), following.flatten())


model = Decoder()
limit = None
if zoo.variant == "plain":
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    limit = 1e-3 if zoo.has("clipped_at_a_thousandth") else 1.0
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=30)
judged = train if zoo.has("validated_on_training_text") else valid

for step in range(STEPS):
    model.train()
    optimizer.zero_grad()
    loss = loss_of(*batch(train, 12))
    loss.backward()
    if limit is not None:
        nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    scheduler.step()
    zoo.trained(step, loss.item())
    if step % 60 == 59:
        model.eval()
        with torch.no_grad():
            losses = [loss_of(*batch(judged, 12)).item() for _ in range(4)]
        zoo.validated(step, sum(losses) / len(losses))
        print(f"step {step + 1}: loss {loss.item():.4f}, validation {sum(losses) / len(losses):.4f}")


@zoo.measured_by
def skill():
    model.eval()
    torch.manual_seed(0)
    words, following = batch(valid, 128)
    with torch.no_grad():
        surprise = loss_of(words, following).item()
    frequencies = torch.bincount(train, minlength=MOST + 1).float() + 1
    guess = F.nll_loss((frequencies / frequencies.sum()).log().repeat(following.numel(), 1), following.flatten())
    return 1 - surprise / guess.item()
