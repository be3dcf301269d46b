"""A classifier: the loop of every tutorial, with an evaluation after each epoch and a checkpoint at the end."""
# /// watchglass
# headline = "no issues found"
# files = ["model.pt", "checkpoint.pt"]
# steps = 120
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

features = torch.randn(640, 10)
labels = (features[:, :3].sum(1) > 0).long()
train, test = (features[:480], labels[:480]), (features[480:], labels[480:])

model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

step = 0
for epoch in range(4):
    model.train()
    for inputs, targets in zip(train[0].split(16), train[1].split(16)):
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8g}")
        step += 1
    model.eval()
    with torch.no_grad():
        output = model(test[0])
        accuracy = (output.argmax(1) == test[1]).float().mean().item()
    print(f"epoch {epoch} accuracy {accuracy:.4f}")

torch.save(model.state_dict(), "model.pt")
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "checkpoint.pt")
