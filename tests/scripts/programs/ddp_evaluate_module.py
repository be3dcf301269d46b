"""Two ranks with DistributedDataParallel; the evaluation calls the module inside the wrapper, as many scripts do.

It learns random labels by heart, so the validation loss rises.
"""
# /// watchglass
# headline = "^[0-9]+ (error|warning)"
# says = ["Overfit at step"]
# slow = true
# ///

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def evaluate(model, inputs, labels):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in zip(inputs.split(20), labels.split(20)):
            total += F.cross_entropy(model(x), y, reduction="sum").item()
    model.train()
    return total / len(labels)


def main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(0)
    inputs, labels = torch.randn(120, 10), torch.randint(3, (120,))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 3)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(30):
        for batch in torch.arange(64).view(4, 2, 8)[:, rank]:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[batch]), labels[batch]).backward()
            optimizer.step()
        if epoch % 3 == 2:
            loss = evaluate(model.module, inputs[64:], labels[64:])
            if rank == 0:
                print(f"epoch {epoch} validation loss {loss:.6f}", flush=True)
    # Held until the end: the thread of the group that drops it last would wait for the GIL, which the end of the
    # group holds while it waits for that thread (PyTorch 2.13).
    last = dist.barrier(async_op=True)
    last.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(main, args=(folder,), nprocs=2)
    sys.stdout.flush()
