"""Ratings of films by users, from vectors of both."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from zoo import Zoo

PROGRAM = {
    "task": "ratings of films",
    "architecture": "matrix factorisation, sparse embeddings",
    "healthy": {
        "sparse": "SparseAdam on sparse embeddings",
        "sgd": "SGD at a rate of 5 for the mean of a batch, as usual for factorisation",
        "perceptron": "Adam, embeddings into a perceptron with dropout",
    },
    "faults": {
        "one_batch_for_all_steps": ("constant_batch", "sparse"),
        "rate_of_four_hundred": ("learning_rate_too_high", "sgd"),
        "decay_of_one_tenth": ("over_regularized", "perceptron"),
        "evaluated_with_dropout": ("dropout_in_evaluation", "perceptron"),
    },
}
USERS, FILMS = 250, 150
zoo = Zoo(PROGRAM)

tastes, kinds = torch.randn(USERS, 3), torch.randn(FILMS, 3)
user_mean, film_mean = 0.5 * torch.randn(USERS), 0.7 * torch.randn(FILMS)
# Few films have most of the ratings.
popularity = 1 / torch.arange(1.0, FILMS + 1) ** 0.5
users = torch.randint(USERS, (14000,))
films = torch.multinomial(popularity, 14000, replacement=True)
ratings = 0.6 * (tastes[users] * kinds[films]).sum(dim=1) + user_mean[users] + film_mean[films]
ratings = ratings + 0.3 * torch.randn(len(ratings))
train = TensorDataset(users[:12000], films[:12000], ratings[:12000])
users_valid, films_valid, ratings_valid = users[12000:], films[12000:], ratings[12000:]


class Factors(nn.Module):
    def __init__(self, size=6):
        super().__init__()
        sparse = zoo.variant == "sparse"
        self.user, self.film = nn.Embedding(USERS, size, sparse=sparse), nn.Embedding(FILMS, size, sparse=sparse)
        self.user_bias, self.film_bias = nn.Embedding(USERS, 1, sparse=sparse), nn.Embedding(FILMS, 1, sparse=sparse)
        for embedding in self.children():
            nn.init.normal_(embedding.weight, std=0.3)

    def forward(self, users, films):
        product = (self.user(users) * self.film(films)).sum(dim=1)
        return product + self.user_bias(users).squeeze(1) + self.film_bias(films).squeeze(1)


class Perceptron(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.user, self.film = nn.Embedding(USERS, size), nn.Embedding(FILMS, size)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.film.weight, std=0.3)
        self.layers = nn.Sequential(nn.Linear(2 * size, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 1))

    def forward(self, users, films):
        return self.layers(torch.cat([self.user(users), self.film(films)], dim=1)).squeeze(1)


model = Perceptron() if zoo.variant == "perceptron" else Factors()
if zoo.variant == "sparse":
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.02)
elif zoo.variant == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=400.0 if zoo.has("rate_of_four_hundred") else 5.0)
else:
    decay = 0.1 if zoo.has("decay_of_one_tenth") else 1e-5
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=decay)
loader = DataLoader(train, batch_size=100, shuffle=True)
first = next(iter(loader))

step = 0
for epoch in range(10):
    model.train()
    for batch in loader:
        user, film, rating = first if zoo.has("one_batch_for_all_steps") else batch
        loss = F.mse_loss(model(user, film), rating)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        zoo.trained(step, loss.item())
        step += 1
    if not zoo.has("evaluated_with_dropout"):
        model.eval()
    with torch.no_grad():
        validation = F.mse_loss(model(users_valid, films_valid), ratings_valid).item()
    zoo.validated(step, validation)
    print(f"epoch {epoch + 1:2d} | train {loss.item():.3f} | valid {validation:.3f}")


@zoo.measured_by
def skill():
    model.eval()
    with torch.no_grad():
        return 1 - (F.mse_loss(model(users_valid, films_valid), ratings_valid) / ratings_valid.var()).item()
