"""PyTorch's VAE example: a sum over the batch of a reconstruction and a divergence; the test loss is the same sum."""
# /// watchglass
# headline = "no issues found"
# never_says = ["accuracy"]
# steps = 240
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(64, 32)
        self.mean, self.log_variance = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, x):
        hidden = F.relu(self.encoder(x.view(-1, 64)))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return torch.sigmoid(self.decoder(z)), mean, log_variance


def loss_function(reconstruction, x, mean, log_variance):
    likelihood = F.binary_cross_entropy(reconstruction, x.view(-1, 64), reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return likelihood + divergence


basis = torch.rand(4, 64)
images = ((torch.randn(640, 4) @ (basis - 0.5)) > 0).float().view(-1, 1, 8, 8)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
step = 0
for epoch in range(12):
    model.train()
    for x in images[:480].split(24):
        optimizer.zero_grad()
        reconstruction, mean, log_variance = model(x)
        loss = loss_function(reconstruction, x, mean, log_variance)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8g}")
        step += 1
    model.eval()
    with torch.no_grad():
        total = 0.0
        for x in images[480:].split(40):
            reconstruction, mean, log_variance = model(x)
            total += loss_function(reconstruction, x, mean, log_variance).item()
    print(f"epoch {epoch} test loss {total / 160:.4f}")
