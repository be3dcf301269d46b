"""The first lesson: tensors of no module, no optimizer, and an update handwritten."""
# /// watchglass
# headline = "no issues found"
# steps = 60
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch

torch.set_num_threads(1)
torch.manual_seed(0)

x = torch.randn(100, 3)
y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.3 + 0.1 * torch.randn(100)

w = torch.randn(3, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
lr = 0.05

for step in range(60):
    loss = ((x @ w + b - y) ** 2).mean()
    loss.backward()
    w.data -= lr * w.grad.data
    b.data -= lr * b.grad.data
    w.grad.data.zero_()
    b.grad.data.zero_()
    print(f"step {step} loss {loss.item():.8g}")
print(w.tolist(), b.item())
