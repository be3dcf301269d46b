"""Two models in turns, of which the second diverges: it is named, and the first is not blamed."""
# /// watchglass
# headline = "^[0-9]+ (error|warning)"
# steps = 400
# says = ["(warning|error): model_2: "]
# never_says = ["(warning|error): model: "]
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
of_teacher = torch.optim.Adam(teacher.parameters(), 1e-2)
of_student = torch.optim.SGD(student.parameters(), 1e-2)
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
    if number == 60:
        of_student.param_groups[0]["lr"] = 30.0
    distilled = F.mse_loss(student(inputs), targets)
    distilled.backward()
    of_student.step()
    print(f"step {number} teacher {loss.item():.4g} student {distilled.item():.4g}")
