"""An L2 penalty added by hand to the training loss and not to the validation loss; it hides no overfitting."""
# /// watchglass
# options = ["--save-interval", "8"]
# headline = "^[0-9]+ (error|warning)"
# says = ["Overfit at step", "validation loss .cross_entropy."]
# steps = 400
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# [[recorded]]
# series = "loss"
# mode = "EVAL"
# line = 'evaluation (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

inputs, labels = torch.randn(256, 10), torch.randint(3, (256,))
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(400):
    batch = torch.arange(step * 16, step * 16 + 16) % 64
    penalty = 1e-2 * sum((weight**2).sum() for weight in model.parameters())
    loss = F.cross_entropy(model(inputs[batch]), labels[batch]) + 0.1 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8g}")
    if step % 20 == 19:
        model.eval()
        with torch.no_grad():
            print(f"evaluation {step // 20} loss {F.cross_entropy(model(inputs[64:]), labels[64:]).item():.8g}")
        model.train()
