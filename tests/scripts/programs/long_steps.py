"""Steps that wait for their data: few of them in a short run, and each is worth a look."""
# /// watchglass
# headline = "no issues found"
# files = ["model.pt"]
# [[recorded]]
# series = "loss"
# mode = "TRAIN"
# line = 'step (\d+) loss (\S+)'
# ///

import time

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
centres = torch.randn(3, 16)
for step in range(8):
    time.sleep(0.3)
    labels = torch.randint(0, 3, (64,))
    loss = torch.nn.functional.cross_entropy(model(centres[labels] + 0.5 * torch.randn(64, 16)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item()!r}")
torch.save(model.state_dict(), "model.pt")
