"""The data set computes each sample in Python, in the process that trains. The twin computed them once before."""

import math

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from task import SLOW, network, samples, train_step

INPUTS, LABELS = samples(128 * 80)


class Augmented(Dataset):
    """Samples that are transformed when they are read."""

    def __len__(self):
        return len(INPUTS)

    def __getitem__(self, index):
        wave = [math.sin(n) * math.cos(n) for n in range(2000)]  # a transformation in plain Python
        return INPUTS[index] + 1e-6 * wave[0], LABELS[index]


model = network()
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for inputs, labels in DataLoader(Augmented() if SLOW else TensorDataset(INPUTS, LABELS), batch_size=128):
    train_step(model, optimizer, inputs.repeat(8, 1), labels.repeat(8))
