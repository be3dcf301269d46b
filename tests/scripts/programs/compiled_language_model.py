"""A compiled model that returns logits and loss, as nanoGPT does: the logits have no gradient."""
# /// watchglass
# headline = "no issues found"
# files = ["model.pt"]
# steps = 40
# slow = true
# [[recorded]]
# series = "loss"
# line = 'step (\d+) loss (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(12, 16), nn.Linear(16, 16), nn.Linear(16, 12)

    def forward(self, tokens, targets=None):
        logits = self.head(torch.relu(self.hidden(self.embed(tokens))))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


model = Language()
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(40):
    tokens = torch.randint(0, 12, (16, 8))
    logits, loss = compiled(tokens, (tokens + 1) % 12)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
torch.save(model.state_dict(), "model.pt")
