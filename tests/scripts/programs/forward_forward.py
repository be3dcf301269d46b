"""Hinton's forward-forward algorithm: each layer is called by its forward and has an optimizer and a loss of its own."""
# /// watchglass
# headline = "no issues found"
# steps = 60
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Layer(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=0.03)

    def forward(self, x):
        x = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return torch.relu(x @ self.weight.T + self.bias)

    def train_on(self, positive, negative):
        good = self.forward(positive).pow(2).mean(1)
        bad = self.forward(negative).pow(2).mean(1)
        loss = torch.log(1 + torch.exp(torch.cat([1 - good, bad - 1]))).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


layer = Layer(20, 32)
positive = torch.randn(64, 20).abs()
negative = torch.randn(64, 20)
for step in range(60):
    print(f"step {step} loss {layer.train_on(positive, negative):.8g}")
