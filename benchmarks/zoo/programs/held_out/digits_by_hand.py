"""Handwritten digits by a network of bare tensors, as in a lecture: no module, updates written out."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "digits",
    "architecture": "bare tensors without modules",
    "healthy": {
        "plain": "gradient descent written out, ReLU",
        "rmsprop": "RMSprop, tanh",
        "momentum": "momentum written out, one sample in a step, falling rate",
    },
    "faults": {
        "plus_in_the_update": ("flipped_sign", "plain"),
        "gradients_kept": ("zero_grad_missing", "plain"),
        "weights_of_unit_spread": ("activation_saturating", "rmsprop"),
        "first_layer_not_listed": ("parameter_not_in_optimizer", "rmsprop"),
    },
}
zoo = Zoo(PROGRAM)

inputs, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(inputs, labels, test_size=0.3, random_state=1)
x, x_test = (torch.tensor(part / 16 - 0.3, dtype=torch.float32) for part in (x, x_test))
y, y_test = torch.tensor(y), torch.tensor(y_test)


def weights(inputs, outputs):
    values = torch.randn(inputs, outputs)
    if not zoo.has("weights_of_unit_spread"):
        values = values * (2 / inputs) ** 0.5
    return values.requires_grad_()


w1, b1 = weights(64, 100), torch.zeros(100, requires_grad=True)
w2, b2 = weights(100, 50), torch.zeros(50, requires_grad=True)
w3, b3 = weights(50, 10), torch.zeros(10, requires_grad=True)
parameters = [w1, b1, w2, b2, w3, b3]


def forward(images):
    activation = torch.tanh if zoo.variant == "rmsprop" else torch.relu
    hidden = activation(images @ w1 + b1)
    hidden = activation(hidden @ w2 + b2)
    return hidden @ w3 + b3


def report(step):
    with torch.no_grad():
        outputs = forward(x_test)
        loss = F.cross_entropy(outputs, y_test).item()
        accuracy = (outputs.argmax(dim=1) == y_test).float().mean().item()
    zoo.validated(step, loss)
    print("step", step, "test loss", loss, "accuracy", accuracy)


if zoo.variant == "rmsprop":
    optimizer = torch.optim.RMSprop(parameters[2:] if zoo.has("first_layer_not_listed") else parameters, lr=5e-4)
    for step in range(600):
        rows = torch.randint(len(x), (32,))
        loss = F.cross_entropy(forward(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        zoo.trained(step, loss.item())
        if step % 150 == 149:
            report(step)
elif zoo.variant == "plain":
    rate = 0.1
    for step in range(800):
        rows = torch.randint(len(x), (32,))
        loss = F.cross_entropy(forward(x[rows]), y[rows])
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                if zoo.has("plus_in_the_update"):
                    parameter += rate * parameter.grad
                else:
                    parameter -= rate * parameter.grad
                if not zoo.has("gradients_kept"):
                    parameter.grad.zero_()
        zoo.trained(step, loss.item())
        if step % 200 == 199:
            report(step)
else:
    velocities = [torch.zeros_like(parameter) for parameter in parameters]
    for step in range(3000):
        row = torch.randint(len(x), (1,))
        loss = F.cross_entropy(forward(x[row]), y[row])
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
                velocity.mul_(0.9).add_(gradient)
                parameter -= 2e-3 * 0.9995**step * velocity
        zoo.trained(step, loss.item())
        if step % 500 == 499:
            report(step)


@zoo.measured_by
def skill():
    with torch.no_grad():
        return above_chance((forward(x_test).argmax(dim=1) == y_test).float().mean().item(), 0.1)
