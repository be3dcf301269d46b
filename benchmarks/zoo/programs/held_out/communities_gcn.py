"""Communities of a graph from half of its nodes, by graph convolutions on the whole graph at once."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "communities of a graph",
    "architecture": "graph convolution",
    "healthy": {
        "gcn": "Adam, dropout 0.5, the whole graph in every step",
        "sage": "RMSprop, own features beside the mean of the neighbours",
        "deep": "AdamW, eight layers with residual connections and layer normalisation",
    },
    "faults": {
        "dropout_while_testing": ("dropout_in_evaluation", "gcn"),
        "log_softmax_over_nodes": ("loss_on_wrong_axis", "gcn"),
        "decay_of_three_tenths": ("over_regularized", "sage"),
        "eight_bare_layers": ("too_deep", "deep"),
    },
}
NODES, COMMUNITIES, FEATURES = 600, 4, 24
zoo = Zoo(PROGRAM)

labels = torch.randint(COMMUNITIES, (NODES,))
same = labels[:, None] == labels[None, :]
edges = (torch.rand(NODES, NODES) < torch.where(same, 0.06, 0.01)).triu(1).float()
adjacency = edges + edges.T
features = F.one_hot(labels, FEATURES).float() * 1.2 + torch.randn(NODES, FEATURES)
order = torch.randperm(NODES)
train, valid, test = order[:300], order[300:400], order[400:]
if zoo.variant == "sage":
    spread = adjacency / adjacency.sum(dim=1, keepdim=True).clamp(min=1)
else:
    looped = adjacency + torch.eye(NODES)
    root = looped.sum(dim=1).rsqrt()
    spread = root[:, None] * looped * root[None, :]
spread = spread.to_sparse()


class Convolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, nodes):
        return torch.sparse.mm(spread, self.linear(nodes))


class SageConvolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(2 * inputs, outputs)

    def forward(self, nodes):
        return self.linear(torch.cat([nodes, torch.sparse.mm(spread, nodes)], dim=1))


class Network(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        convolution = SageConvolution if zoo.variant == "sage" else Convolution
        self.first = convolution(FEATURES, width)
        between = 6 if zoo.variant == "deep" else 0
        self.middle = nn.ModuleList(convolution(width, width) for _ in range(between))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(between))
        self.dropout = nn.Dropout(0.5 if zoo.variant == "gcn" else 0.0)
        self.last = convolution(width, COMMUNITIES)

    def forward(self, nodes):
        hidden = F.relu(self.first(nodes))
        for layer, norm in zip(self.middle, self.norms, strict=True):
            if zoo.has("eight_bare_layers"):
                hidden = F.relu(layer(hidden))
            else:
                hidden = hidden + F.relu(layer(norm(hidden)))
        outputs = self.last(self.dropout(hidden))
        return F.log_softmax(outputs, dim=0 if zoo.has("log_softmax_over_nodes") else 1)


model = Network()
if zoo.variant == "gcn":
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
elif zoo.variant == "sage":
    decay = 0.3 if zoo.has("decay_of_three_tenths") else 1e-3
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3, weight_decay=decay)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for epoch in range(100):
    model.train()
    optimizer.zero_grad()
    loss = F.nll_loss(model(features)[train], labels[train])
    loss.backward()
    optimizer.step()
    zoo.trained(epoch, loss.item())
    if epoch % 10 == 9:
        if not zoo.has("dropout_while_testing"):
            model.eval()
        with torch.no_grad():
            outputs = model(features)
        validation = F.nll_loss(outputs[valid], labels[valid]).item()
        accuracy = (outputs.argmax(dim=1) == labels)[valid].float().mean().item()
        zoo.validated(epoch, validation)
        print(f"Epoch: {epoch + 1:03d}, Loss: {loss.item():.4f}, Val: {validation:.4f}, Acc: {accuracy:.3f}")


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        right = (model(features).argmax(dim=1) == labels)[test].float().mean().item()
    return above_chance(right, 1 / COMMUNITIES)
