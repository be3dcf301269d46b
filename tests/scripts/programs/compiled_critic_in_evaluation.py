"""Evaluations of a model that ask a compiled function of another network: it is compiled once, as without watching."""
# /// watchglass
# headline = "no issues found"
# steps = 60
# slow = true
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
graphs = 0


def counting(graph, inputs):
    global graphs
    graphs += 1
    return graph.forward


model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
critic = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)).requires_grad_(False)


@torch.compile(backend=counting, fullgraph=True)
def judge(outputs):
    return critic(outputs).mean()


inputs = torch.randn(512, 8)
labels = (inputs @ torch.randn(8, 3)).argmax(1)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
evaluations = 0
for number in range(60):
    batch = torch.randint(400, (32,))
    optimizer.zero_grad()
    F.cross_entropy(model(inputs[batch]), labels[batch]).backward()
    optimizer.step()
    if number % 5 == 4:
        with torch.no_grad():
            outputs = model(inputs[400:])
            loss = F.cross_entropy(outputs, labels[400:])
            print(f"evaluation {evaluations} loss {loss.item():.8g} judged {judge(outputs):.4f}")
        evaluations += 1
print("graphs", graphs)
