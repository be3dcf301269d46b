"""Distillation: a small loss of the teacher and a large one of the student, trained in turns."""
# /// watchglass
# headline = "no issues found"
# steps = 400
# [[recorded]]
# series = "loss"
# line = 'step (\d+) teacher (\S+)'
# [[recorded]]
# series = "model_2/loss"
# line = 'step (\d+) student (\S+)'
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
of_teacher = torch.optim.Adam(teacher.parameters(), 1e-2)
of_student = torch.optim.Adam(student.parameters(), 1e-2)
truth = torch.randn(8, 4)
for number in range(200):
    inputs = torch.randn(64, 8)
    labels = (inputs @ truth).argmax(1)
    of_teacher.zero_grad()
    loss = F.cross_entropy(teacher(inputs), labels)
    loss.backward()
    of_teacher.step()
    with torch.no_grad():
        targets = teacher(inputs)
    of_student.zero_grad()
    distilled = 20 * F.mse_loss(student(inputs), targets)
    distilled.backward()
    of_student.step()
    print(f"step {2 * number} teacher {loss.item():.8g}")
    print(f"step {2 * number + 1} student {distilled.item():.8g}")
