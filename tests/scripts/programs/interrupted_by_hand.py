"""A script that handles Ctrl-C itself: it saves a checkpoint and ends well."""
# /// watchglass
# headline = "no issues found"
# files = ["checkpoint.pt"]
# ///

import os
import signal

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
interrupted = False


def on_interrupt(number, frame):
    global interrupted
    interrupted = True


signal.signal(signal.SIGINT, on_interrupt)
for step in range(100_000):
    inputs = torch.randn(8, 4)
    loss = F.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 50:
        os.kill(os.getpid(), signal.SIGINT)
    if interrupted:
        print("interrupted at", step)
        torch.save({"model": model.state_dict(), "step": step}, "checkpoint.pt")
        break
