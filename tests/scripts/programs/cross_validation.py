"""k-fold cross-validation: five training runs of fresh models in one process, each evaluated after each epoch."""
# /// watchglass
# headline = "no issues found"
# steps = 200
# says = ["model_2\\b.*40 training steps.*validation loss", "and 3 further models; no findings in them"]
# [[recorded]]
# series = "model_5/loss"
# line = 'step (1[6-9]\d) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(500, 8)
labels = (inputs @ torch.randn(8, 3)).argmax(1)
scores, step = [], 0
for fold in range(5):
    held_out = torch.arange(500) % 5 == fold
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    for epoch in range(4):
        model.train()
        for batch in torch.randperm(400).split(40):
            chosen = torch.nonzero(~held_out).squeeze(1)[batch]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.8g}")
            step += 1
        model.eval()
        with torch.no_grad():
            outputs = model(inputs[held_out])
            validation = F.cross_entropy(outputs, labels[held_out]).item()
    scores.append((outputs.argmax(1) == labels[held_out]).float().mean().item())
    print(f"fold {fold} validation {validation:.6f} accuracy {scores[-1]:.3f}")
print(f"mean accuracy {sum(scores) / 5:.3f}")
