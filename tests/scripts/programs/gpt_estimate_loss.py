"""A language model as nanoGPT trains one: forward returns (logits, loss), estimate_loss without gradients, accumulation.

It learns a few characters by heart, so the validation loss rises.
"""
# /// watchglass
# options = ["--save-interval", "4"]
# headline = "^[0-9]+ (error|warning)"
# says = ["[Tt]he\\s+model\\s+overfits\\s+its\\s+training\\s+data"]
# steps = 120
# [[recorded]]
# series = "loss"
# mode = "EVAL"
# line = 'evaluation (\d+) loss (\S+)'
# ///

import math

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

block_size, vocabulary, width, batch_size, accumulation, eval_iters = 8, 16, 32, 8, 2, 3


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(block_size, width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, idx, targets=None):
        x = self.tokens(idx) + self.positions(torch.arange(idx.size(1)))
        q, k, v = self.attention(self.norm(x)).chunk(3, dim=-1)
        weights = (q @ k.transpose(-2, -1)) / math.sqrt(width)
        mask = torch.ones(idx.size(1), idx.size(1)).tril() == 0
        x = x + weights.masked_fill(mask, float("-inf")).softmax(-1) @ v
        x = x + self.mlp(self.norm(x))
        if targets is None:
            return self.head(x[:, [-1], :]), None
        logits = self.head(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


data = {"train": torch.randint(vocabulary, (48,)), "val": torch.randint(vocabulary, (200,))}
evaluations = 0


def get_batch(split):
    starts = torch.randint(len(data[split]) - block_size, (batch_size,))
    x = torch.stack([data[split][i : i + block_size] for i in starts])
    y = torch.stack([data[split][i + 1 : i + 1 + block_size] for i in starts])
    return x, y


@torch.no_grad()
def estimate_loss(model):
    global evaluations
    model.eval()
    losses = torch.zeros(eval_iters)
    for k in range(eval_iters):
        _, loss = model(*get_batch("val"))
        print(f"evaluation {evaluations} loss {loss.item():.8g}")
        losses[k] = loss.item()
        evaluations += 1
    model.train()
    return losses.mean()


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for iteration in range(120):
    if iteration % 10 == 0:
        print(f"iteration {iteration} val {estimate_loss(model):.4f}")
    for micro_step in range(accumulation):
        _, loss = model(*get_batch("train"))
        loss = loss / accumulation
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print(f"val {estimate_loss(model):.4f}")
