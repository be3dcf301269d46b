"""Which of two signs comes first in a list, by an encoder whose answer depends on the order."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "order of signs",
    "architecture": "transformer encoder",
    "healthy": {
        "learned": "Adam with warm-up, learned positions",
        "sines": "AdamW, fixed sines as positions",
        "half": "parameters in bfloat16 with moments in float32",
        "float16": "SGD with momentum, float16 autocast and a gradient scaler",
    },
    "faults": {
        "positions_not_added": ("position_missing", "learned"),
        "sines_times_zero": ("position_missing", "sines"),
        "moments_in_bfloat16": ("optimizer_state_in_half", "half"),
        "no_scaler_and_a_small_loss": ("fp16_underflow", "float16"),
    },
}
STEPS = 260
SIGNS, LENGTH, WIDTH = 8, 12, 32
zoo = Zoo(PROGRAM)


def lists(count):
    """Lists in which signs 0 and 1 come once each; the class is whether 0 comes first."""
    signs = torch.randint(2, SIGNS, (count, LENGTH))
    places = torch.rand(count, LENGTH).argsort(dim=1)[:, :2]
    signs.scatter_(1, places[:, :1], 0)
    signs.scatter_(1, places[:, 1:], 1)
    return signs, (places[:, 0] < places[:, 1]).long()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.signs, self.positions = nn.Embedding(SIGNS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)
        angles = torch.arange(LENGTH)[:, None] / 20 ** (torch.arange(WIDTH // 2) / (WIDTH // 2))
        scale = 0.0 if zoo.has("sines_times_zero") else 1.0
        self.register_buffer("sines", scale * torch.cat([angles.sin(), angles.cos()], dim=1))

    def forward(self, signs):
        hidden = self.signs(signs)
        if zoo.variant == "sines":
            hidden = hidden + self.sines
        elif not zoo.has("positions_not_added"):
            hidden = hidden + self.positions.weight
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(self.norm(hidden).mean(dim=1))


class HalfAdam(torch.optim.Optimizer):
    """Adam that keeps a copy of the weights in float32, and its moments in a given type."""

    def __init__(self, parameters, lr, moments):
        super().__init__(parameters, {"lr": lr})
        self.moments, self.steps = moments, 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["weight"] = parameter.float().clone()
                    state["first"] = torch.zeros_like(parameter, dtype=self.moments)
                    state["second"] = torch.zeros_like(parameter, dtype=self.moments)
                gradient = parameter.grad.to(self.moments)
                state["first"].mul_(0.9).add_(gradient, alpha=0.1)
                state["second"].mul_(0.9999).addcmul_(gradient, gradient, value=0.0001)
                second = state["second"].float() / (1 - 0.9999**self.steps)
                first = state["first"].float() / (1 - 0.9**self.steps)
                state["weight"] -= group["lr"] * first / (second.sqrt() + 1e-8)
                parameter.copy_(state["weight"])


model = Encoder()
scaler = torch.amp.GradScaler("cpu", enabled=zoo.variant == "float16" and not zoo.fault)
weight = 1.0
if zoo.variant == "half":
    model = model.bfloat16()
    moments = torch.bfloat16 if zoo.has("moments_in_bfloat16") else torch.float32
    optimizer = HalfAdam(model.parameters(), lr=2e-3, moments=moments)
elif zoo.variant == "float16":
    # A loss in small units, with a rate to match.
    weight = 1e-5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / weight, momentum=0.9)
elif zoo.variant == "sines":
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=30)
signs_valid, labels_valid = lists(400)

for step in range(STEPS):
    model.train()
    signs, labels = lists(32)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16, enabled=zoo.variant == "float16"):
        logits = model(signs)
        loss = weight * F.cross_entropy(logits.half() if zoo.variant == "float16" else logits.float(), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    zoo.trained(step, loss.item())
    if step % 65 == 64:
        model.eval()
        with torch.no_grad():
            validation = weight * F.cross_entropy(model(signs_valid).float(), labels_valid)
        zoo.validated(step, validation.item())
        print(f"step {step + 1}: training loss {loss.item():.4g}, validation loss {validation.item():.4g}")


@zoo.measured_by
def skill():
    model.eval()
    torch.manual_seed(0)
    signs, labels = lists(1000)
    with torch.no_grad():
        right = (model(signs).argmax(dim=-1) == labels).float().mean().item()
    return above_chance(right, 0.5)
