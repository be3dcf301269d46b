"""Millions of Python objects, and a collection every ten steps. The twin leaves them out, and collects once."""

import gc

import torch

from task import SLOW, network, samples, train_step

index = [{"sample": [n]} for n in range(1_000_000)]
if not SLOW:
    gc.freeze()
model = network(128)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for step in range(150):
    train_step(model, optimizer, *samples(128))
    if SLOW and step % 10 == 9:
        gc.collect()
gc.collect()
