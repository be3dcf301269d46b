"""SAM: two backwards and one update; the gradient of the second updates the weights of the first."""
# /// watchglass
# headline = "no issues found"
# steps = 60
# [[recorded]]
# series = "loss"
# line = 'step (\d+) first \S+ second (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **settings):
        super().__init__(params, {"rho": rho, **settings})
        self.base = base(self.param_groups, **settings)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * (group["rho"] / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()


features = torch.randn(512, 10)
labels = (features[:, :3].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)

for step in range(60):
    rows = torch.randint(512, (32,))
    first = F.cross_entropy(model(features[rows]), labels[rows])
    first.backward()
    optimizer.first_step()
    second = F.cross_entropy(model(features[rows]), labels[rows])
    second.backward()
    optimizer.second_step()
    print(f"step {step} first {first.item():.8g} second {second.item():.8g}")
