"""Far more loader workers than cores. The twin has one."""

import os

import torch
from torch.utils.data import DataLoader, TensorDataset

from task import SLOW, network, samples, train_step

workers = 4 * len(os.sched_getaffinity(0)) if SLOW else 1
loader = DataLoader(TensorDataset(*samples(256 * 60)), batch_size=256, num_workers=workers, persistent_workers=True)
model = network()
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for _ in range(3):
    for inputs, labels in loader:
        train_step(model, optimizer, inputs.repeat(4, 1), labels.repeat(4))
