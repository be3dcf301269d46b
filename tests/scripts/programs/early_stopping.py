"""Early stopping with the best state kept and restored, a warm-up and cosine schedule, and gradient clipping."""
# /// watchglass
# headline = "no issues found"
# files = ["best.pt"]
# ///

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

features = torch.randn(800, 10)
labels = ((features[:, 0] + 0.3 * torch.randn(800)) > 0).long()
model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min(1, (step + 1) / 20) * (0.5 + 0.5 * math.cos(math.pi * min(1, step / 200)))
)
best, state, patience = float("inf"), None, 0
for epoch in range(8):
    model.train()
    for inputs, targets in zip(features[:600].split(32), labels[:600].split(32)):
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.inference_mode():
        validation = F.cross_entropy(model(features[600:]), labels[600:]).item()
    print(f"epoch {epoch} validation {validation:.6f}")
    if validation < best:
        best, state, patience = validation, copy.deepcopy(model.state_dict()), 0
    else:
        patience += 1
        if patience == 2:
            break
model.load_state_dict(state)
torch.save(model.state_dict(), "best.pt")
