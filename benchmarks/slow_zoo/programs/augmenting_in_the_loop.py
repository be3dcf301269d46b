"""Each batch is augmented sample by sample in the training loop. The twin augments the whole batch."""

import torch

from task import SLOW, network, samples, train_step


def augmented(inputs, noise):
    """Noise, a random gain of each sample, and a normalisation."""
    inputs = (inputs + 0.1 * noise[..., :-1]).clamp(-3, 3) * (1 + 0.1 * noise[..., -1:])
    return (inputs - inputs.mean(-1, keepdim=True)) / inputs.std(-1, keepdim=True)


model = network(256)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(100):
    inputs, labels = samples(256)
    noise = torch.randn(256, inputs.shape[1] + 1)
    if SLOW:
        inputs = torch.stack([augmented(*each) for each in zip(inputs, noise, strict=True)])
    else:
        inputs = augmented(inputs, noise)
    train_step(model, optimizer, inputs, labels)
