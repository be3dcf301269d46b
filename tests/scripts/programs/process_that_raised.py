"""A script that goes on without a separate process that raised."""
# /// watchglass
# headline = "^no issues found in "
# says = ["worker_1\\s+ended\\s+early,\\s+ValueError:\\s+the\\s+second\\s+one\\s+is\\s+unhappy"]
# timing = true
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
    if rate == 0.3:
        raise ValueError("the second one is unhappy")


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    for rate in (0.1, 0.3):
        process = context.Process(target=train, args=(rate,))
        process.start()
        process.join()
    print("done")
