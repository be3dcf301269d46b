"""A script that takes its gradients from a function, which watchglass does not watch, and updates tensors itself."""
# /// watchglass
# headline = "^no data: no training step was recorded: torch was imported, and no backward was observed"
# never_says = ["no issues found"]
# ///

import torch

torch.manual_seed(0)

weights = torch.zeros(8, requires_grad=True)
for step in range(20):
    inputs = torch.randn(16, 8)
    loss = ((inputs @ weights - inputs[:, 0]) ** 2).mean()
    (gradient,) = torch.autograd.grad(loss, [weights])
    with torch.no_grad():
        weights -= 0.1 * gradient
    print("step", step, "loss", loss.item())
