"""An autoencoder of handwritten digits: sixteen numbers for each image of 8 x 8."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from zoo import Zoo

PROGRAM = {
    "task": "digits, without labels",
    "architecture": "autoencoder",
    "healthy": {
        "plain": "Adam, squared error",
        "denoising": "RMSprop, noise on the inputs, binary cross-entropy on pixels in 0..1",
        "variational": "Adam, Gaussian code with a KL term",
    },
    "faults": {
        "code_detached": ("graph_detached", "plain"),
        "relu_on_standardized_pixels": ("activation_misplaced", "plain"),
        "softmax_in_the_middle": ("activation_misplaced", "plain"),
        "cross_entropy_on_standardized_pixels": ("wrong_loss", "denoising"),
        "weights_of_1e_4": ("initialization_too_small", "plain"),
        "half_precision": ("fp16_overflow", "variational"),
    },
}
STEPS = 800
zoo = Zoo(PROGRAM)

images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
pixels = zoo.variant == "denoising" and not zoo.has("cross_entropy_on_standardized_pixels")
if not pixels:
    images = (images - images.mean()) / images.std()
order = torch.randperm(len(images))
train, valid = images[order[400:]], images[order[:400]]


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        width = 32 if zoo.variant == "variational" else 16
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, width))
        self.middle = nn.Softmax(dim=-1) if zoo.has("softmax_in_the_middle") else nn.Identity()
        self.decoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64))
        if zoo.has("relu_on_standardized_pixels"):
            self.decoder.append(nn.ReLU())

    def forward(self, inputs):
        code = self.middle(self.encoder(inputs))
        if zoo.has("code_detached"):
            code = code.detach()
        if zoo.variant != "variational":
            return self.decoder(code), None
        mean, log_variance = code.chunk(2, dim=-1)
        if zoo.has("half_precision"):
            mean, log_variance = (mean * 300).half(), (log_variance * 300).half()
        sampled = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        divergence = ((mean**2 + log_variance.exp() - 1 - log_variance) / 2).sum(dim=-1).mean()
        return self.decoder(sampled.float()), divergence.float()


def objective(inputs, targets):
    outputs, divergence = model(inputs)
    if zoo.variant == "denoising":
        if zoo.has("cross_entropy_on_standardized_pixels"):
            return nn.functional.binary_cross_entropy_with_logits(outputs, targets)
        return nn.functional.binary_cross_entropy_with_logits(outputs, targets)
    loss = nn.functional.mse_loss(outputs, targets)
    return loss if divergence is None else loss + 0.003 * divergence


model = Autoencoder()
if zoo.has("weights_of_1e_4"):
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=1e-4)
if zoo.variant == "denoising":
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for step in range(STEPS):
    model.train()
    batch = train[torch.randint(len(train), (64,))]
    noisy = batch + 0.2 * torch.randn_like(batch) if zoo.variant == "denoising" else batch
    loss = objective(noisy, batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    zoo.trained(step, loss.item())
    if step % 200 == 199:
        model.eval()
        with torch.no_grad():
            validation = objective(valid, valid).item()
        zoo.validated(step, validation)
        print(f"{step + 1}: {loss.item():.4f} {validation:.4f}")


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        outputs = model(valid)[0]
    if pixels:
        outputs = outputs.sigmoid()
    return 1 - ((outputs - valid) ** 2).mean().item() / valid.var(dim=0).mean().item()
