"""Direction of a grating under noise, by a small vision transformer."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "directions of gratings",
    "architecture": "vision transformer",
    "healthy": {
        "plain": "AdamW, warm-up and cosine decay, dropout 0.3",
        "adam": "Adam at a low constant rate, no dropout, normalisation after each layer",
        "head_only": "SGD with momentum for the head, encoder trained on fewer directions before and frozen",
    },
    "faults": {
        "dropout_on_in_validation": ("dropout_in_evaluation", "plain"),
        "encoder_never_loaded_but_frozen": ("frozen_layer", "head_only"),
        "weights_in_bfloat16": ("bf16_stall", "adam"),
        "epsilon_of_one_half": ("adam_epsilon", "plain"),
    },
}
STEPS, DIRECTIONS = 350, 6
zoo = Zoo(PROGRAM)


def gratings(count, directions=DIRECTIONS):
    """Images of 16 x 16 bytes."""
    labels = torch.randint(directions, (count,))
    down, across = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    angle = (labels * math.pi / DIRECTIONS).view(-1, 1, 1)
    period = torch.rand(count, 1, 1) * 2 + 4
    phase = torch.rand(count, 1, 1) * 2 * math.pi
    wave = torch.sin((across * angle.cos() + down * angle.sin()) * 2 * math.pi / period + phase)
    images = 120 + torch.randn(count, 1, 1) * 20 + 35 * wave + 30 * torch.randn(count, 16, 16)
    return images.clamp(0, 255).to(torch.uint8).unsqueeze(1), labels


def prepare(images):
    return (images.float() / 255 - 0.47) / 0.17


class VisionTransformer(nn.Module):
    def __init__(self, classes, width=32, dropout=0.0):
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 64, dropout, activation="gelu", batch_first=True, norm_first=zoo.variant != "adam"
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1)
        return self.head(self.encoder(tokens + self.position)[:, 0])


x, y = gratings(3000)
x_valid, y_valid = gratings(500)
x, x_valid = prepare(x), prepare(x_valid)
model = VisionTransformer(DIRECTIONS, dropout=0.3 if zoo.variant == "plain" else 0.0)

if zoo.variant == "head_only":
    if not zoo.has("encoder_never_loaded_but_frozen"):
        source = VisionTransformer(classes=4)
        others, other_labels = gratings(3000, directions=4)
        others = prepare(others)
        pretraining = torch.optim.AdamW(source.parameters(), lr=2e-3)
        for rows in torch.randint(3000, (250, 32)):
            loss = F.cross_entropy(source(others[rows]), other_labels[rows])
            pretraining.zero_grad()
            loss.backward()
            pretraining.step()
        weights = {name: value for name, value in source.state_dict().items() if not name.startswith("head")}
        model.load_state_dict(weights, strict=False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("head")
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.05, momentum=0.9)
elif zoo.variant == "plain":
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=2e-3, weight_decay=0.05, eps=0.5 if zoo.has("epsilon_of_one_half") else 1e-8
    )
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
schedule = [torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0, 1)]
if zoo.variant == "plain":
    schedule = [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=50),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
    ]
if zoo.has("weights_in_bfloat16"):
    model = model.to(torch.bfloat16)
    x, x_valid = x.to(torch.bfloat16), x_valid.to(torch.bfloat16)


def validate(step):
    if not zoo.has("dropout_on_in_validation"):
        model.eval()
    with torch.no_grad():
        outputs = model(x_valid)
        loss = F.cross_entropy(outputs, y_valid).item()
        accuracy = (outputs.argmax(dim=1) == y_valid).float().mean().item()
    model.train()
    zoo.validated(step, loss)
    print(f"[{step:4d}] val loss {loss:.4f}  val acc {accuracy:.3f}")


for step in range(STEPS):
    rows = torch.randint(len(x), (32,))
    loss = F.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for scheduler in schedule:
        scheduler.step()
    zoo.trained(step, loss.item())
    if step % 70 == 69:
        validate(step)


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        right = (model(x_valid).argmax(dim=1) == y_valid).float().mean().item()
    return above_chance(right, 1 / DIRECTIONS)
