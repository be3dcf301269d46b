"""The loop runs in a separate thread."""
# /// watchglass
# headline = "backward ran 40 times and the loop ran in a thread that is not watched"
# ///

import threading

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def train():
    for step in range(40):
        inputs = torch.randn(16, 10)
        loss = F.mse_loss(model(inputs), inputs[:, :4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "loss", loss.item())


thread = threading.Thread(target=train)
thread.start()
thread.join()
