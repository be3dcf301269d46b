"""Two processes of DistributedDataParallel, started by the script itself."""
# /// watchglass
# headline = "no issues found"
# slow = true
# timing = true
# files = ["model.pt"]
# ///

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank, world_size, folder):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    torch.set_num_threads(1)
    # Of a store in rank 0 that leaves first, the other rank may wait for ever.
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    for step in range(40):
        inputs = torch.randn(16, 6)
        loss = F.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
        print("trained")
    # Held until the end: the thread of the group that drops it last would wait for the GIL, which the end of the
    # group holds while it waits for that thread (PyTorch 2.13).
    last = dist.barrier(async_op=True)
    last.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (2, folder), nprocs=2)
