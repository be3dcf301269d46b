"""Topics of short texts, several at once, from bags of words."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo import Zoo

PROGRAM = {
    "task": "several topics of a text",
    "architecture": "bag of embeddings, multi-label",
    "healthy": {
        "plain": "binary cross-entropy, Adam",
        "focal": "focal loss written out on probabilities, AdamW",
        "ranking": "pairwise ranking loss of present against absent topics, SGD with momentum",
    },
    "faults": {
        "sigmoid_left_out": ("missing_softmax", "focal"),
        "archive_in_order_of_time": ("data_not_shuffled", "plain"),
        "penalty_of_one_half": ("over_regularized", "plain"),
        "head_made_after_the_optimizer": ("parameter_not_in_optimizer", "ranking"),
        "embeddings_and_first_layer_frozen": ("frozen_layer", "plain"),
    },
}
WORDS, TOPICS, LENGTH = 600, 8, 24
zoo = Zoo(PROGRAM)

# Some words are typical of a topic, most are of none, and over the years topics come and go.
affinity = torch.randn(TOPICS, WORDS).mul(1.6).exp()


def archive(count):
    when = torch.arange(count) / count
    season = torch.arange(TOPICS) / TOPICS
    likely = 0.06 + 0.7 * (-((when[:, None] - season) ** 2) / 0.015).exp()
    present = torch.rand(count, TOPICS) < likely
    mixture = present.float() @ affinity + 1.0
    return torch.multinomial(mixture, LENGTH, replacement=True), present.float()


texts, labels = archive(4000)
order = torch.randperm(4000)
train, valid = order[:3400], order[3400:]
if zoo.has("archive_in_order_of_time"):
    train = train.sort().values


class Tagger(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embeddings = nn.EmbeddingBag(WORDS, width, mode="mean")
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, TOPICS)

    def forward(self, texts):
        return self.head(F.relu(self.hidden(self.embeddings(texts))))


model = Tagger()
if zoo.has("embeddings_and_first_layer_frozen"):
    for parameter in [*model.embeddings.parameters(), *model.hidden.parameters()]:
        parameter.requires_grad = False
trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
if zoo.variant == "plain":
    optimizer = torch.optim.Adam(trainable, lr=5e-3)
elif zoo.variant == "focal":
    optimizer = torch.optim.AdamW(trainable, lr=5e-3)
else:
    optimizer = torch.optim.SGD(trainable, lr=0.5, momentum=0.9)
if zoo.has("head_made_after_the_optimizer"):
    model.head = nn.Linear(32, TOPICS)


def criterion(outputs, present):
    if zoo.variant == "plain":
        loss = F.binary_cross_entropy_with_logits(outputs, present)
        if zoo.has("penalty_of_one_half"):
            loss = loss + 0.5 * sum((parameter**2).sum() for parameter in model.parameters())
        return loss
    if zoo.variant == "focal":
        probability = outputs if zoo.has("sigmoid_left_out") else outputs.sigmoid()
        probability = probability.clamp(1e-6, 1 - 1e-6)
        right = torch.where(present > 0, probability, 1 - probability)
        return -((1 - right) ** 2 * right.log()).mean()
    pairs = (present[:, :, None] > 0) & (present[:, None, :] == 0)
    return F.softplus(outputs[:, None, :] - outputs[:, :, None])[pairs].mean()


step = 0
for epoch in range(4):
    model.train()
    shuffled = train if zoo.has("archive_in_order_of_time") else train[torch.randperm(len(train))]
    for rows in shuffled.split(32):
        loss = criterion(model(texts[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        zoo.trained(step, loss.item())
        step += 1
    model.eval()
    with torch.no_grad():
        validation = criterion(model(texts[valid]), labels[valid]).item()
    zoo.validated(step, validation)
    print(f"epoch {epoch + 1}: {loss.item():.4f} / {validation:.4f}")


@zoo.measured_by
def skill():
    """Precision of as many topics of all texts as there are, above their share."""
    model.eval()
    with torch.no_grad():
        outputs = model(texts[valid])
    if zoo.variant == "ranking":
        outputs = outputs - outputs.mean(dim=1, keepdim=True)
    present = labels[valid].flatten()
    chosen = outputs.flatten().topk(int(present.sum())).indices
    chance = present.mean().item()
    return (present[chosen].mean().item() - chance) / (1 - chance)
