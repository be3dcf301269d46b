"""A script that checks that its objects are as it made them: no attribute more, the class's own call, no hook on a tensor."""
# /// watchglass
# headline = "no issues found"
# ///

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 2)

    def forward(self, inputs):
        return self.second(F.relu(self.first(inputs)))


model = Net()
attributes = {name: sorted(vars(module)) for name, module in model.named_modules()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
of_the_optimizer = sorted(vars(optimizer))
for step in range(40):
    inputs = torch.randn(16, 6)
    loss = F.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert {name: sorted(vars(module)) for name, module in model.named_modules()} == attributes
    assert sorted(vars(optimizer)) == of_the_optimizer
    assert all(parameter._backward_hooks is None for parameter in model.parameters())
    assert type(model).__call__ is nn.Module.__call__
print("as they were made")
