"""Hogwild: processes that train by themselves, without a process group."""
# /// watchglass
# headline = "no issues found"
# ///

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn


def train(rank):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    features = torch.randn(256, 8)
    labels = (features[:, 0] > 0).long()
    for _ in range(40 + 20 * rank):
        rows = torch.randint(256, (32,))
        loss = F.cross_entropy(model(features[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    mp.spawn(train, nprocs=3)
    print("done")
