"""A process that is terminated once it has trained for long enough."""
# /// watchglass
# headline = "^no issues found in "
# says = [
#   "in 40 steps",
#   "worker_0\\s+ended\\s+early,\\s+like\\s+a\\s+terminated\\s+process",
# ]
# ///

import multiprocessing
import time

import torch
import torch.nn.functional as F
from torch import nn


def train(rate, done):
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
    for _ in range(200):  # longer than the half second within which what was captured is written
        time.sleep(0.01)  # a machine that stands still meanwhile takes no more than one of them
    done.set()
    time.sleep(60)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    process = context.Process(target=train, args=(0.1, done))
    process.start()
    done.wait()
    process.terminate()
    process.join()
    print("terminated")
