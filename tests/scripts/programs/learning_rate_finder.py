"""A learning rate finder before the training: the state is saved, the rate raised until the loss rises, and restored."""
# /// watchglass
# headline = "."
# files = ["model.pt"]
# steps = 110
# ///

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

features = torch.randn(640, 10)
labels = (features[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)


def train_step(rows):
    loss = F.cross_entropy(model(features[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
losses = []
for number in range(50):
    for group in optimizer.param_groups:
        group["lr"] = 1e-4 * 1.3**number
    losses.append(train_step(torch.randint(0, 640, (32,))))
model.load_state_dict(saved[0])
optimizer.load_state_dict(saved[1])
for group in optimizer.param_groups:
    group["lr"] = 0.1
print("suggested", 1e-4 * 1.3 ** losses.index(min(losses)) / 10)
for step in range(60):
    print(f"step {step} loss {train_step(torch.randint(0, 640, (32,))):.6g}")
torch.save(model.state_dict(), "model.pt")
