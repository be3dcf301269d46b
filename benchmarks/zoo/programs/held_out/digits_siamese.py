"""An embedding of digits in which equal ones are near, from triplets, pairs or two views of an image."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "which digits are alike",
    "architecture": "siamese network",
    "healthy": {
        "triplets": "triplet loss, Adam; the loss is often zero",
        "pairs": "contrastive loss written out, SGD with momentum",
        "views": "noisy views of an image against the other images of the batch, RMSprop",
    },
    "faults": {
        "batch_drawn_before_the_loop": ("constant_batch", "triplets"),
        "positive_and_negative_swapped": ("flipped_sign", "triplets"),
        "rate_of_one_half": ("learning_rate_too_high", "pairs"),
    },
}
STEPS = 500
zoo = Zoo(PROGRAM)

inputs, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(inputs, labels, test_size=0.3, random_state=3)
mean, std = x.mean(), x.std()
# The network sees images through a fixed mixing of pixels, in which near pixels mean nothing.
mixing = torch.randn(64, 64) / 8
x, x_test = (torch.tensor((part - mean) / std, dtype=torch.float32) @ mixing for part in (x, x_test))
x, x_test = (part + 0.8 * torch.randn_like(part) for part in (x, x_test))
y, y_test = torch.tensor(y), torch.tensor(y_test)
by_label = [(y == label).nonzero().squeeze(1) for label in range(10)]


def another(rows, *, same):
    """A row of the same label, or of another one, for each row."""
    wanted = y[rows] if same else (y[rows] + torch.randint(1, 10, (len(rows),))) % 10
    return torch.stack([by_label[label][torch.randint(len(by_label[label]), ())] for label in wanted.tolist()])


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 8))

    def forward(self, images):
        outputs = self.layers(images)
        return F.normalize(outputs, dim=1) if zoo.variant == "views" else outputs


model = Embedder()
if zoo.variant == "triplets":
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
elif zoo.variant == "pairs":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5 if zoo.has("rate_of_one_half") else 0.05, momentum=0.9)
else:
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)


def draw():
    rows = torch.randint(len(x), (48,))
    if zoo.variant == "views":
        return rows, None, None
    return rows, another(rows, same=True), another(rows, same=False)


def loss_of(rows, alike, different):
    if zoo.variant == "views":
        first, second = (model(x[rows] + 0.3 * torch.randn(len(rows), 64)) for _ in range(2))
        # Images with one label are no negatives of each other.
        similar = first @ second.T / 0.2
        equal = (y[rows, None] == y[None, rows]) & ~torch.eye(len(rows), dtype=torch.bool)
        return F.cross_entropy(similar.masked_fill(equal, -1e4), torch.arange(len(rows)))
    anchor, positive, negative = model(x[rows]), model(x[alike]), model(x[different])
    if zoo.has("positive_and_negative_swapped"):
        positive, negative = negative, positive
    if zoo.variant == "triplets":
        return F.triplet_margin_loss(anchor, positive, negative, margin=1.0)
    near = ((anchor - positive) ** 2).sum(dim=1)
    far = (anchor - negative).norm(dim=1)
    return (near + F.relu(2.0 - far) ** 2).mean()


batch = draw()
for step in range(STEPS):
    if not zoo.has("batch_drawn_before_the_loop"):
        batch = draw()
    loss = loss_of(*batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    zoo.trained(step, loss.item())
    if step % 100 == 99:
        print(f"step {step + 1}: {loss.item():.4f}")


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        nearest = torch.cdist(model(x_test), model(x)).topk(5, largest=False).indices
    found = y[nearest].mode(dim=1).values
    return above_chance((found == y_test).float().mean().item(), 0.1)
