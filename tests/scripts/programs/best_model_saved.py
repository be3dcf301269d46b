"""The whole best model is saved after each epoch and loaded at the end, as PyTorch's word_language_model does."""
# /// watchglass
# headline = "no issues found"
# files = ["best.pt"]
# steps = 60
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(12, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 12)

    def forward(self, tokens):
        return self.head(self.cell(self.embed(tokens))[0])


def loss_of(model, tokens):
    return F.cross_entropy(model(tokens).flatten(0, 1), (tokens + 1).remainder(12).flatten())


model = Words()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
held_out = torch.randint(0, 12, (32, 6))
best, step = None, 0
for epoch in range(3):
    model.train()
    for _ in range(20):
        loss = loss_of(model, torch.randint(0, 12, (16, 6)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "loss", loss.item())
        step += 1
    model.eval()
    with torch.no_grad():
        value = loss_of(model, held_out).item()
    if best is None or value < best:
        best = value
        torch.save(model, "best.pt")

with torch.serialization.safe_globals([Words, nn.Embedding, nn.GRU, nn.Linear]):
    loaded = torch.load("best.pt", weights_only=True)
hooks = [len(table) for part in loaded.modules() for name, table in vars(part).items() if name.endswith("_hooks")]
loaded.eval()
with torch.no_grad():
    print("loaded", loss_of(loaded, held_out).item(), "hooks", sum(hooks))
