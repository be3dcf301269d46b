"""A history of Python numbers grows with each step. The twin keeps the last ones."""

import time
from collections import deque

import torch

from task import SLOW, network, samples, train_step

model = network()
optimizer = torch.optim.SGD(model.parameters(), 0.05)
history = deque(maxlen=None if SLOW else 16)
end = time.monotonic() + 12
while time.monotonic() < end:
    inputs, labels = samples(2048)
    train_step(model, optimizer, inputs, labels)
    history.append([(number, str(number)) for number in inputs[:256].flatten().tolist()])
