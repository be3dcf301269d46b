"""A checkpoint with optimizer and buffers is written every ten steps. The twin writes one at the end."""

import os

import torch

from task import SLOW, network, samples, train_step

model = network(128)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
replay = torch.randn(24 << 20)  # as a replay buffer or a table of embeddings is
for step in range(150):
    train_step(model, optimizer, *samples(128))
    if SLOW and step % 10 == 9:
        with open("checkpoint.pt", "wb") as file:
            torch.save({"model": model.state_dict(), "replay": replay}, file)
            os.fsync(file.fileno())
torch.save(model.state_dict(), "checkpoint.pt")
