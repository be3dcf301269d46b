"""Losses are kept with their graphs. The twin keeps numbers."""

import time

import torch
from torch import nn

from task import SLOW, network, samples, train_step

model = network(128)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
losses = []
end = time.monotonic() + 12
while time.monotonic() < end:
    inputs, labels = samples(1024)
    loss = train_step(model, optimizer, inputs, labels)
    regular = nn.functional.mse_loss(model(inputs), torch.zeros(1024, 8))  # what is logged beside the loss
    losses.append(regular if SLOW else regular.item())
    time.sleep(0.02)
