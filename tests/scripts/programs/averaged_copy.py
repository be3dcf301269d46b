"""An exponential moving average of the weights, evaluated beside the model."""
# /// watchglass
# headline = "no issues found"
# steps = 120
# says = ["model_2.*not trained, validation loss"]
# [[recorded]]
# series = "loss"
# mode = "EVAL"
# line = 'evaluation (\d+) model (\S+)'
# [[recorded]]
# series = "model_2/loss"
# mode = "EVAL"
# line = 'evaluation (\d+) average (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(512, 8)
labels = (inputs @ torch.randn(8, 3)).argmax(1)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for number in range(120):
    batch = torch.randint(400, (32,))
    optimizer.zero_grad()
    F.cross_entropy(model(inputs[batch]), labels[batch]).backward()
    optimizer.step()
    average.update_parameters(model)
    if number % 20 == 19:
        with torch.no_grad():
            own = F.cross_entropy(model(inputs[400:]), labels[400:]).item()
            averaged = F.cross_entropy(average(inputs[400:]), labels[400:]).item()
        print(f"evaluation {number // 20 * 2} model {own:.8g}")
        print(f"evaluation {number // 20 * 2 + 1} average {averaged:.8g}")
