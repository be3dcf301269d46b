"""A Wasserstein GAN with clipped weights: losses of both signs, near zero at first."""
# /// watchglass
# headline = "^no issues found"
# never_says = ["diverged", "rises again", "does not fall"]
# ///

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
generator = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
generator_optimizer = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
for step in range(300):
    real = torch.randn(64, 2) * 0.5 + torch.tensor([2.0, -1.0])
    fake = generator(torch.randn(64, 4))
    critic_loss = critic(fake.detach()).mean() - critic(real).mean()
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    for parameter in critic.parameters():
        parameter.data.clamp_(-0.1, 0.1)
    if step % 5 == 4:
        generator_loss = -critic(generator(torch.randn(64, 4))).mean()
        generator_optimizer.zero_grad()
        generator_loss.backward()
        generator_optimizer.step()
        print(f"step {step} critic {critic_loss.item():.6g} generator {generator_loss.item():.6g}")
