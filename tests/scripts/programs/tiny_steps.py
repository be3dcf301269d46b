"""Steps of a fifth of a millisecond: what is done at every step shows most."""
# /// watchglass
# headline = "no issues found"
# files = ["model.pt"]
# [[recorded]]
# series = "loss"
# mode = "TRAIN"
# line = 'step (\d+) loss (\S+)'
# ///

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
weights = torch.randn(4, 1)
inputs = torch.randn(256, 4)
labels = inputs @ weights
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1500):
    chosen = torch.randint(0, 256, (32,))
    loss = torch.nn.functional.mse_loss(model(inputs[chosen]), labels[chosen] + 0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 500 == 0:
        print(f"step {step} loss {loss.item()!r}")
torch.save(model.state_dict(), "model.pt")
