"""nanoGPT's loop with a compiled model: the first estimate_loss comes before the first training step."""
# /// watchglass
# headline = "no issues found"
# steps = 40
# slow = true
# [[recorded]]
# series = "loss"
# mode = "EVAL"
# line = 'evaluation (\d+) loss (\S+)'
# [[recorded]]
# series = "loss"
# line = 'iteration (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(12, 16), nn.Linear(16, 16), nn.Linear(16, 12)

    def forward(self, idx, targets=None):
        logits = self.head(torch.relu(self.hidden(self.embed(idx))))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def get_batch():
    idx = torch.randint(0, 12, (16, 8))
    return idx, (idx + 1) % 12


evaluations = 0


@torch.no_grad()
def estimate_loss():
    global evaluations
    model.eval()
    for split in ("train", "val"):
        for _ in range(12):
            _, loss = model(*get_batch())
            print(f"evaluation {evaluations} loss {loss.item():.8g}")
            evaluations += 1
    model.train()


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model = torch.compile(model, backend="aot_eager")
for iteration in range(40):
    if iteration % 20 == 0:
        estimate_loss()
    total = 0.0
    for micro_step in range(2):
        _, loss = model(*get_batch())
        loss = loss / 2
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"iteration {iteration} loss {total:.8g}")
