"""An exception in one of two processes that a script spawns: the reason is that process's, not that of the parent."""
# /// watchglass
# status = 1
# headline = "^failed after .* training steps: ValueError: the second one is unhappy"
# timing = true
# slow = true
# ///

import torch
import torch.multiprocessing as mp
from torch import nn


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(30):
        inputs = torch.randn(8, 4)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 20 and rank == 1:
            raise ValueError("the second one is unhappy")


if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
