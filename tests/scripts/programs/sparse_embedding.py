"""Sparse gradients of an embedding with SparseAdam, beside a dense optimizer for the rest."""
# /// watchglass
# options = ["--save-interval", "1"]
# headline = "^1 warning"
# says = ["is no better\\s+than guessing"]  # its targets are random
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


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(50, 8, sparse=True), nn.Embedding(40, 8, sparse=True)
        self.score = nn.Linear(16, 1)

    def forward(self, users, items):
        return self.score(torch.cat([self.users(users), self.items(items)], 1)).squeeze(1)


model = Recommender()
sparse = torch.optim.SparseAdam([*model.users.parameters(), *model.items.parameters()], lr=0.01)
dense = torch.optim.Adam(model.score.parameters(), lr=0.01)
taste = torch.randn(50, 40)
for step in range(60):
    users, items = torch.randint(0, 50, (64,)), torch.randint(0, 40, (64,))
    loss = F.mse_loss(model(users, items), taste[users, items])
    for optimizer in (sparse, dense):
        optimizer.zero_grad()
    loss.backward()
    for optimizer in (sparse, dense):
        optimizer.step()
    print(f"step {step} loss {loss.item():.8g}")
