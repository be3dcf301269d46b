"""A search in which the last learning rate is far too high: that model is named, the others are not blamed."""
# /// watchglass
# headline = "^1 error"
# steps = 240
# says = ["error: model_3: the loss became (NaN|infinite)"]
# never_says = ["(warning|error): model(_2)?: "]
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
for rate in (0.01, 0.03, 40.0):
    torch.manual_seed(0)
    inputs = torch.randn(2000, 8)
    targets = (inputs @ torch.randn(8, 1)).sin()
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for number in range(80):
        batch = torch.randint(2000, (64,))
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()
    print(f"rate {rate} loss {loss.item():.6g}")
