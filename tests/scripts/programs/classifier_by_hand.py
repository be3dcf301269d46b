# /// watchglass
# headline = "no issues found"
# [[recorded]]
# series = "loss"
# line = "step (\\d+) loss ([\\d.e+-]+)"
# [[recorded]]
# series = "loss"
# mode = "EVAL"
# line = "validation batch (\\d+) loss ([\\d.e+-]+)"
# ///
"""A classifier whose loss is handwritten, with its accuracy and its mean confidence beside it in the evaluation."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
centres = torch.randn(4, 10)
labels = torch.randint(0, 4, (320,))
inputs = centres[labels] + 1.5 * torch.randn(320, 10)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
step = batches = 0
for epoch in range(8):
    model.train()
    for batch in torch.randperm(256).split(32):
        logits = model(inputs[batch])
        loss = -(torch.log_softmax(logits, 1)[range(len(batch)), labels[batch]]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6g}")
        step += 1
    model.eval()
    right = 0
    with torch.no_grad():
        for batch in torch.arange(256, 320).split(24):
            logits = model(inputs[batch])
            log_probabilities = torch.log_softmax(logits, 1)
            right += (logits.argmax(1) == labels[batch]).float().mean().item() * len(batch)
            confidence = log_probabilities.exp().max(1).values.mean()
            loss = -(log_probabilities[range(len(batch)), labels[batch]]).mean()
            print(f"validation batch {batches} loss {loss.item():.6g}")
            batches += 1
    print(f"epoch {epoch} accuracy {right / 64:.4f} confidence {confidence.item():.4f}")
