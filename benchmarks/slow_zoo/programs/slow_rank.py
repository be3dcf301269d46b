"""The first of two ranks does more between its steps. In the twin neither does."""

import time

import torch
import torch.distributed as dist
from torch import nn

from task import SLOW, network, samples, train_step

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(network(64))
optimizer = torch.optim.SGD(model.parameters(), 0.5)
torch.manual_seed(dist.get_rank())
for _ in range(90):
    train_step(model, optimizer, *samples(128))
    if SLOW and dist.get_rank() == 0:
        time.sleep(0.03)  # a log on a slow disk, of a service that answers late
last = dist.barrier(async_op=True)
last.wait()
dist.destroy_process_group()
