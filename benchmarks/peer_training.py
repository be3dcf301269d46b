"""One run watched by one tool, next to unwatched ones; runs in the tool's own environment and prints a JSON object.

Called by peers.py. Needs PyTorch, NumPy and the tool; nothing of watchglass unless that is the tool.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from background import Background, delete_oldest
from pairs import Step, compare
from workloads import WORKLOADS, Training

#: Where raw tensors go, and how much of them beyond which the oldest files go, so that they fill no disk.
_BULKY, _KEPT_BYTES = ("*.safetensors", "*.tfevents"), 2 << 30


@dataclass(frozen=True)
class Attached:
    """A tool at work.

    Attributes:
        step: One training step with everything that the tool wants called.
        close: Detaches it.
    """

    step: Step
    close: Callable[[], object]


def watchglass_tool(
    training: Training, folder: str, interval: int, *, names: tuple[str, ...], **settings: Any
) -> Attached:
    """Statistics of collections, or the tensors too."""
    watchglass: Any = import_module("watchglass")
    handle = watchglass.watch(
        training.model,
        run=Path(folder) / "run",
        collections=[watchglass.Collection(name, **settings) for name in names],
        save_interval=interval,
        strict=True,
        flush_interval_s=1.5,  # three training runs' time passes for each of its steps; 0.5 s beside no other
    )
    return Attached(training.step, handle.close)


def smdebug_tool(training: Training, folder: str, interval: int, *, raw: bool) -> Attached:
    """Weights, biases, gradients and module outputs: six reductions, or the tensors."""
    logging.disable(logging.WARNING)
    smd: Any = import_module("smdebug.pytorch")
    reductions = ["min", "max", "mean", "std"]
    hook = smd.Hook(
        out_dir=f"{folder}/run",
        reduction_config=smd.ReductionConfig(
            reductions=None if raw else reductions, norms=None if raw else ["l1", "l2"], save_raw_tensor=raw
        ),
        save_config=smd.SaveConfig(save_interval=interval),
        include_collections=["weights", "biases", "gradients", "outputs"],
    )
    hook.get_collection("outputs").include(r"output_\d+$")
    hook.register_module(training.model)
    return Attached(training.step, hook.close)


def tensorboard_tool(training: Training, folder: str, interval: int) -> Attached:
    """Histograms of parameters and gradients, as its documentation shows: after the step, by name."""
    writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(folder)
    named = list(training.model.named_parameters())
    steps = 0

    def step() -> None:
        nonlocal steps
        training.step()
        if steps % interval == 0:
            for name, parameter in named:
                writer.add_histogram(name, parameter, steps)
                writer.add_histogram(f"gradient/{name}", parameter.grad, steps)
        steps += 1

    return Attached(step, writer.close)


def wandb_tool(training: Training, folder: str, interval: int) -> Attached:
    """``watch(log="all")`` offline: histograms of parameters and gradients, committed where there are any."""
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_CONSOLE="off", WANDB_DIR=folder)
    wandb: Any = import_module("wandb")
    run = wandb.init(project="peers", dir=folder)
    run.watch(training.model, log="all", log_freq=interval)
    steps = 0

    def step() -> None:
        nonlocal steps
        training.step()
        steps += 1
        if steps % interval == 0:
            run.log({})

    return Attached(step, run.finish)


_PARAMETERS = ("weights", "biases", "gradients")

#: Tools, by name.
TOOLS: dict[str, Callable[[Training, str, int], Attached]] = {
    "watchglass-statistics": lambda training, folder, interval: watchglass_tool(
        training, folder, interval, names=(*_PARAMETERS, "outputs"), save_histogram=True
    ),
    "watchglass-parameters": lambda training, folder, interval: watchglass_tool(
        training, folder, interval, names=_PARAMETERS, save_histogram=True
    ),
    "watchglass-raw": lambda training, folder, interval: watchglass_tool(
        training, folder, interval, names=(*_PARAMETERS, "outputs"), save_raw=True
    ),
    "smdebug-reductions": lambda training, folder, interval: smdebug_tool(training, folder, interval, raw=False),
    "smdebug-raw": lambda training, folder, interval: smdebug_tool(training, folder, interval, raw=True),
    "tensorboard": tensorboard_tool,
    "wandb": wandb_tool,
}


def measure(tool: str, model: str, interval: int, *, limit_s: float, half_width: float) -> dict[str, Any]:
    """Compare one training run under a tool with two bare ones in this process."""
    subject, bare, other = (WORKLOADS[model]() for _ in range(3))
    for training in (bare, other):
        training.step()
    background = Background()
    with tempfile.TemporaryDirectory(prefix="peer-") as folder:
        attached = TOOLS[tool](subject, folder, interval)
        steps = (attached.step, bare.step, other.step)
        for _ in range(3 * interval + 5):
            for step in steps:
                step()
        gc.collect()

        def before_block() -> None:
            background.look()
            delete_oldest(Path(folder), _BULKY, _KEPT_BYTES)

        comparison = compare(
            *steps,
            block=max(5, interval),
            half_width=half_width,
            limit_s=limit_s,
            charged_s=background,
            trim=0.1,
            before_block=before_block,
        )
        attached.close()
        written = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    watched, control = comparison.watched, comparison.control
    return {
        "tool": tool,
        "model": model,
        "interval": interval,
        "bare_ms": round(comparison.bare_ms, 4),
        "ratio": round(watched.ratio, 4),
        "ci95": [round(watched.low, 4), round(watched.high, 4)],
        "control": round(control.ratio, 4),
        "blocks": comparison.blocks,
        "written_bytes": written,
        "versions": {name: version(name) for name in (tool.partition("-")[0], "torch", "numpy")},
    }


def main() -> None:
    """Measure one line and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", choices=list(TOOLS), required=True)
    parser.add_argument("--model", choices=list(WORKLOADS), required=True)
    parser.add_argument("--interval", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--half-width", type=float, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = measure(args.tool, args.model, args.interval, limit_s=args.seconds, half_width=args.half_width)
    # Tools print too: the last line is ours.
    print(f"\n{json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
