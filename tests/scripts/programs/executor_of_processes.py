"""A search in an executor, whose processes come to their end."""
# /// watchglass
# headline = "^no issues found in "
# says = ["in 160 steps"]
# never_says = ["ended early"]
# ///

from concurrent.futures import ProcessPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn


def train(rate):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for _ in range(40):
        inputs = torch.randn(32, 8)
        loss = F.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return round(loss.item(), 6)


if __name__ == "__main__":
    with ProcessPoolExecutor(2) as executor:
        print(list(executor.map(train, [0.01, 0.1, 0.3, 1.0])))
