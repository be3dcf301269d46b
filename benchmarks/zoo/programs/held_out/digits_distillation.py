"""A small student learns handwritten digits from a larger teacher."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

from zoo import Zoo, above_chance

PROGRAM = {
    "task": "digits, from a teacher",
    "architecture": "teacher and student",
    "healthy": {
        "soft": "Kullback-Leibler divergence at temperature 3, Adam; the teacher is frozen",
        "both": "soft and hard labels, SGD with momentum, dropout in the student, an average of its weights",
    },
    "faults": {
        "logits_into_kl_divergence": ("missing_softmax", "soft"),
        "teacher_in_the_optimizer": ("parameter_not_in_optimizer", "soft"),
        "scaled_by_16_twice": ("inputs_normalized_twice", "both"),
        "student_of_two_units": ("underfitting_small_model", "both"),
        "student_never_in_eval": ("dropout_in_evaluation", "both"),
    },
}
STEPS, TEMPERATURE = 500, 3.0
zoo = Zoo(PROGRAM)

inputs, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(inputs, labels, test_size=0.3, random_state=4)
x, x_test = (torch.tensor(part / 16, dtype=torch.float32).view(-1, 1, 8, 8) for part in (x, x_test))
y, y_test = torch.tensor(y), torch.tensor(y_test)
if zoo.has("scaled_by_16_twice"):
    x, x_test = x / 16, x_test / 16

teacher = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(512, 10),
)
optimizer = torch.optim.Adam(teacher.parameters(), lr=2e-3)
for _ in range(120):
    rows = torch.randint(len(x), (64,))
    loss = F.cross_entropy(teacher(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
teacher.eval()
for parameter in teacher.parameters():
    parameter.requires_grad = False

width = 2 if zoo.has("student_of_two_units") else 32
student = nn.Sequential(
    nn.Flatten(),
    nn.Linear(64, width),
    nn.ReLU(),
    nn.Dropout(0.3 if zoo.variant == "both" and width > 2 else 0.0),
    nn.Linear(width, 10),
)
average = torch.optim.swa_utils.AveragedModel(student, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
if zoo.variant == "soft":
    learner = teacher if zoo.has("teacher_in_the_optimizer") else student
    optimizer = torch.optim.Adam(learner.parameters(), lr=3e-3)
else:
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)


def divergence(outputs, images):
    with torch.no_grad():
        wanted = (teacher(images) / TEMPERATURE).softmax(dim=1)
    found = outputs / TEMPERATURE
    if not zoo.has("logits_into_kl_divergence"):
        found = found.log_softmax(dim=1)
    return F.kl_div(found, wanted, reduction="batchmean") * TEMPERATURE**2


for step in range(STEPS):
    student.train()
    rows = torch.randint(len(x), (64,))
    outputs = student(x[rows])
    loss = divergence(outputs, x[rows])
    if zoo.variant == "both":
        loss = 0.5 * loss + 0.5 * F.cross_entropy(outputs, y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(student)
    zoo.trained(step, loss.item())
    if step % 100 == 99:
        if not zoo.has("student_never_in_eval"):
            student.eval()
        with torch.no_grad():
            outputs = student(x_test)
            validation = F.cross_entropy(outputs, y_test).item()
            accuracy = (outputs.argmax(dim=1) == y_test).float().mean().item()
        zoo.validated(step, validation)
        print(f"step {step + 1}: loss {loss.item():.4f}, validation {validation:.4f}, accuracy {accuracy:.3f}")


@zoo.measured_by
def skill():
    deployed = average.eval() if zoo.variant == "both" else student.eval()
    with torch.no_grad():
        return above_chance((deployed(x_test).argmax(dim=1) == y_test).float().mean().item(), 0.1)
