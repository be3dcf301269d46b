"""A search in a pool of forks, which end as it is left, by a signal or not; each has two models."""
# /// watchglass
# # With a process that is ended by a signal the last captures of its second model may be lost.
# headline = '^(no issues found in .*|not judged: [12] of 4 models could not be judged: .*model_2.*)$'
# says = [
#   "in 160 steps",
#   "(?s)model of worker_0.*model of worker_1.*and 2 further models; no findings in them",
# ]
# ///

import multiprocessing

import torch
import torch.nn.functional as F
from torch import nn

together = None


def begin(barrier):
    global together
    together = barrier


def train(rate):
    together.wait()
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
    context = multiprocessing.get_context("fork")
    with context.Pool(2, begin, (context.Barrier(2),)) as pool:
        print(pool.map(train, [0.01, 0.1, 0.3, 1.0], chunksize=2))
