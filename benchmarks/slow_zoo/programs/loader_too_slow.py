"""Samples take longer to load than the model needs for them. The twin has them in memory, and needs no worker."""

import time

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from task import SLOW, network, samples, train_step

INPUTS, LABELS = samples(64 * 50)


class Remote(Dataset):
    """A store that answers after a moment."""

    def __len__(self):
        return len(INPUTS)

    def __getitem__(self, index):
        time.sleep(0.005)
        return INPUTS[index], LABELS[index]


data = Remote() if SLOW else TensorDataset(INPUTS, LABELS)
loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=int(SLOW))
model = network()
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for inputs, labels in loader:
    train_step(model, optimizer, inputs.repeat(8, 1), labels.repeat(8))
