"""A process for each of several models, one after the other."""
# /// watchglass
# headline = "^no issues found in "
# says = [
#   "in 80 steps",
#   "(?s)model of worker_0.*model of worker_1",
# ]
# never_says = ["ended early"]
# ///

import multiprocessing

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
    context = multiprocessing.get_context("spawn")
    for rate in (0.1, 0.3):
        process = context.Process(target=train, args=(rate,))
        process.start()
        process.join()
    print("done")
