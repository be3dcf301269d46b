"""A function that is another one in every quarter of the plane, by a mixture of experts."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Zoo

PROGRAM = {
    "task": "a function in four pieces",
    "architecture": "mixture of experts",
    "healthy": {
        "switch": "each sample to one expert, loss for balance, Adam with warm-up",
        "top_two": "the best two of four experts, noise on the router, AdamW",
        "dense": "all experts weighted by the router, RMSprop",
    },
    "faults": {
        "balance_rewarded_backwards": ("dead_experts", "switch"),
        "bias_towards_the_first": ("dead_experts", "top_two"),
        "experts_in_a_list": ("parameter_not_in_optimizer", "dense"),
        "router_frozen": ("frozen_layer", "dense"),
    },
}
STEPS, EXPERTS = 900, 4
zoo = Zoo(PROGRAM)


def sample(count):
    x = torch.rand(count, 2) * 2 - 1
    a, b = x[:, 0], x[:, 1]
    pieces = torch.stack([2 * a - b, 2 * torch.sin(7 * b) + 1, -3 * a * b - 1, 2 * torch.cos(6 * a) - b])
    quarter = (a > 0).long() + 2 * (b > 0).long()
    return x, pieces[quarter, torch.arange(count)] + 0.05 * torch.randn(count)


class Experts(nn.Module):
    def __init__(self, hidden=3):
        super().__init__()
        experts = [nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 1)) for _ in range(EXPERTS)]
        self.experts = experts if zoo.has("experts_in_a_list") else nn.ModuleList(experts)
        self.router = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, EXPERTS))
        if zoo.has("bias_towards_the_first"):
            # Start as the dense model that the first expert is taken from.
            nn.init.zeros_(self.router[-1].bias)
            with torch.no_grad():
                self.router[-1].bias[0] = 25.0

    def forward(self, x):
        """Outputs, and how far the load of the experts is from even."""
        logits = self.router(x)
        if self.training and zoo.variant == "top_two":
            logits = logits + 0.1 * torch.randn_like(logits)
        gates = logits.softmax(dim=-1)
        kept = {"switch": 1, "top_two": 2, "dense": EXPERTS}[zoo.variant]
        weights, chosen = gates.topk(kept, dim=-1)
        if zoo.variant == "top_two":
            weights = weights / weights.sum(dim=-1, keepdim=True)
        outputs = torch.zeros(len(x))
        for index, expert in enumerate(self.experts):
            rows, places = (chosen == index).nonzero(as_tuple=True)
            if len(rows):
                outputs = outputs.index_add(0, rows, expert(x[rows]).squeeze(-1) * weights[rows, places])
        share = F.one_hot(chosen[:, 0], EXPERTS).float().mean(dim=0)
        return outputs, EXPERTS * (share * gates.mean(dim=0)).sum()


model = Experts()
if zoo.has("router_frozen"):
    for parameter in model.router.parameters():
        parameter.requires_grad = False
trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
if zoo.variant == "dense":
    optimizer = torch.optim.RMSprop(trainable, lr=3e-3)
elif zoo.variant == "top_two":
    optimizer = torch.optim.AdamW(trainable, lr=5e-3)
else:
    optimizer = torch.optim.Adam(trainable, lr=8e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=100 if zoo.variant == "switch" else 1)
balance = 0.02 if zoo.variant == "switch" else 0.0
if zoo.has("balance_rewarded_backwards"):
    balance = -0.5
x_valid, y_valid = sample(1000)

for step in range(STEPS):
    model.train()
    x, y = sample(64)
    outputs, uneven = model(x)
    loss = F.mse_loss(outputs, y) + balance * uneven
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    zoo.trained(step, loss.item())
    if step % 150 == 149:
        model.eval()
        with torch.no_grad():
            validation = F.mse_loss(model(x_valid)[0], y_valid).item()
        zoo.validated(step, validation)
        print(f"{step + 1} train {loss.item():.4f} valid {validation:.4f} uneven {uneven.item():.2f}")


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        return 1 - (F.mse_loss(model(x_valid)[0], y_valid) / y_valid.var()).item()
