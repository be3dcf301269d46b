"""What watching adds to steps of tiny models: a plain loop, micro-batches, a GAN, a teacher, updates by hand.

    python benchmarks/short_steps.py                    40 blocks of each loop
    python benchmarks/short_steps.py --only gan --blocks 10

Two processes train the same models, one bare and one watched as ``watchglass run`` does it. Blocks of steps alternate
between them, so only one works at a time. The figures are medians over the blocks, in processor time: of the training
thread, and of the whole process, with the recorder's thread. The first steps, of which all are recorded, are not
measured.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from watchglass import Hook
from watchglass.capture import attach, loop

Step = Callable[[], None]
#: Steps before the first block: more than are recorded whole, and enough for the pattern to be learned after them.
_AHEAD = 5000


def _net(inputs: int = 8, outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def _batch(outputs: int = 1) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(16, 8)
    return inputs, inputs[:, :outputs].tanh()


def plain() -> Step:
    """One forward, one backward, one optimizer."""
    model, (inputs, targets) = _net(), _batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()

    return step


def micro_batches() -> Step:
    """Gradients accumulated over four batches."""
    model, (inputs, targets) = _net(), _batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(4):
            (F.mse_loss(model(inputs), targets) / 4).backward()
        optimizer.step()

    return step


def episode() -> Step:
    """Eight forwards for one backward, as in reinforcement learning."""
    model, (inputs, targets) = _net(), _batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        losses = [F.mse_loss(model(inputs), targets) for _ in range(8)]
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()

    return step


def gan() -> Step:
    """A generator and a discriminator, each with an optimizer, take turns."""
    generator, discriminator, (real, _) = _net(4, 8), _net(), _batch()
    first = torch.optim.Adam(discriminator.parameters(), lr=0.001)
    second = torch.optim.Adam(generator.parameters(), lr=0.001)
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)

    def step() -> None:
        fake = generator(torch.randn(16, 4))
        first.zero_grad()
        loss = F.binary_cross_entropy_with_logits(discriminator(real), ones)
        loss = loss + F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
        loss.backward()
        first.step()
        second.zero_grad()
        F.binary_cross_entropy_with_logits(discriminator(fake), ones).backward()
        second.step()

    return step


def _distillation(*, ahead: bool) -> Step:
    student, (inputs, _) = _net(), _batch()
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)

    def taught() -> Tensor:
        with torch.no_grad():
            targets: Tensor = teacher(inputs)
        return targets

    def step() -> None:
        targets = taught() if ahead else None
        outputs = student(inputs)
        loss = F.mse_loss(outputs, taught() if targets is None else targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def teacher_inside() -> Step:
    """A teacher is called without gradients after the student."""
    return _distillation(ahead=False)


def teacher_ahead() -> Step:
    """A teacher is called without gradients ahead of the student."""
    return _distillation(ahead=True)


def by_hand() -> Step:
    """The script updates the weights itself."""
    model, (inputs, targets) = _net(), _batch()

    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        F.mse_loss(model(inputs), targets).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.01)

    return step


LOOPS: dict[str, Callable[[], Step]] = {
    each.__name__: each for each in (plain, micro_batches, episode, gan, teacher_inside, teacher_ahead, by_hand)
}


def train(kind: str, folder: str | None, connection: Connection) -> None:
    """In a process: make as many steps as the connection asks for, and send the processor time that they took."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with ExitStack() as stack:
        if folder is not None:
            hook = stack.enter_context(Hook(Path(folder) / "run"))
            attach(hook.port, loop("torch"))
        step = LOOPS[kind]()
        while steps := connection.recv():
            begun = time.thread_time(), time.process_time()
            for _ in range(steps):
                step()
            connection.send((time.thread_time() - begun[0], time.process_time() - begun[1]))


def measure(kind: str, blocks: int, steps: int, ahead: int) -> None:
    """Print the figures of one loop."""
    context: Any = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends = []
        for where in (None, folder):
            ours, theirs = context.Pipe()
            process = context.Process(target=train, args=(kind, where, theirs))
            process.start()
            ends.append((ours, process))

        def block(which: int, count: int) -> tuple[float, float]:
            ends[which][0].send(count)
            thread, whole = ends[which][0].recv()
            return thread / count * 1e6, whole / count * 1e6

        for which in (0, 1):
            block(which, ahead)
        found = []
        for number in range(blocks):
            order = (0, 1) if number % 2 else (1, 0)
            pair = {which: block(which, steps) for which in order}
            found.append((*pair[0], *pair[1]))
        for ours, process in ends:
            ours.send(0)
            process.join()
    bare, watched = (statistics.median(each[at] for each in found) for at in (0, 2))
    more = statistics.median(each[2] - each[0] for each in found)
    thread = statistics.median(each[2] / each[0] for each in found)
    whole = statistics.median(each[3] / each[1] for each in found)
    print(
        f"{kind:15} bare {bare:6.0f} µs, watched {watched:6.0f} µs: {more:6.1f} µs more, {thread:.3f} times; "
        f"with the recorder's thread {whole:.3f} times",
        flush=True,
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=40, help="pairs of blocks of each loop")
    parser.add_argument("--steps", type=int, default=500, help="steps of a block")
    parser.add_argument("--ahead", type=int, default=_AHEAD, help="steps before the first block")
    parser.add_argument("--only", choices=LOOPS, action="append", help="one loop; may be repeated")
    options = parser.parse_args()
    for kind in options.only or LOOPS:
        measure(kind, options.blocks, options.steps, options.ahead)


if __name__ == "__main__":
    main()
