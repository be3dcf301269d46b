"""What watching costs with other tools: the same training runs, each tool in a separate environment.

    python benchmarks/peers.py                     everything; makes the environments the first time
    python benchmarks/peers.py --only smdebug-reductions --model mlp --interval 1 --json

README.md in this folder describes what each tool has to do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tables import Table, machine, sentence

#: What each tool needs except PyTorch; None for the environment of this process. smdebug runs only with what was
#: there when it was last released.
ENVIRONMENTS: dict[str, tuple[str, ...] | None] = {
    "watchglass": None,
    "smdebug": ("smdebug==1.0.34", "numpy==1.26.4", "protobuf==3.20.3", "requests", "psutil", "pandas<2.3"),
    "tensorboard": ("tensorboard", "numpy"),
    "wandb": ("wandb", "numpy"),
}

#: What each line of the table is, in its order.
LINES = {
    "watchglass-statistics": "watchglass, statistics and histograms of parameters, gradients, outputs",
    "watchglass-parameters": "watchglass, statistics and histograms of parameters, gradients",
    "watchglass-raw": "watchglass, raw parameters, gradients, outputs",
    "smdebug-reductions": "smdebug, six reductions of parameters, gradients, outputs",
    "smdebug-raw": "smdebug, raw parameters, gradients, outputs",
    "tensorboard": "TensorBoard, histograms of parameters, gradients",
    "wandb": 'Weights & Biases, watch(log="all"), parameters, gradients',
}
MODELS, INTERVALS = ("mlp", "transformer"), (1, 10)

_TRAINING = Path(__file__).with_name("peer_training.py")
_MADE = "made"


class PeerFailedError(RuntimeError):
    """An environment cannot be made, or a training run in one has failed; the message ends with what it said."""


def environment(name: str, cache: Path, say: Callable[[str], None]) -> Path:
    """The interpreter of a tool's environment, which is made when it is not there or its requirements have changed.

    Raises:
        PeerFailedError: It cannot be made.
    """
    requirements = ENVIRONMENTS[name]
    if requirements is None:
        return Path(sys.executable)
    # The same PyTorch for all. A suffix such as +cpu says where a build came from and is not for the index.
    wanted = [*requirements, f"torch=={torch.__version__.partition('+')[0]}"]
    key = hashlib.sha256(" ".join([sys.version, *wanted]).encode()).hexdigest()[:12]
    folder = cache / f"{name}-{key}"
    python = folder / "bin" / "python"
    if not (folder / _MADE).exists():
        say(f"making {folder} with {' '.join(wanted)}")
        shutil.rmtree(folder, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(folder)])
        run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted])
        (folder / _MADE).touch()
    return python


def measure(
    tool: str, model: str, interval: int, *, python: Path, threads: int, seconds: float, half_width: float
) -> dict[str, Any]:
    """Measure one tool on one training run, in a process of the tool's environment.

    Raises:
        PeerFailedError: The training failed there.
    """
    command = [
        str(python), str(_TRAINING), "--tool", tool, "--model", model, "--interval", str(interval),
        "--threads", str(threads), "--seconds", str(seconds), "--half-width", str(half_width),
    ]  # fmt: skip
    found: dict[str, Any] = json.loads(run(command).strip().splitlines()[-1])
    return found


def run(command: list[str]) -> str:
    """What a command prints.

    Raises:
        PeerFailedError: It failed.
    """
    # Nothing of this process's watching or paths is theirs; ours is found where this process found it.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WATCHGLASS")}
    if command[0] != sys.executable:
        environ.pop("PYTHONPATH", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise PeerFailedError(f"{' '.join(command)} failed with status {done.returncode}:\n{end}")
    return done.stdout


TABLE = Table([("tool", 72), *((f"{model}, {interval}", 15) for model in MODELS for interval in INTERVALS)])


def show(tool: str, found: dict[tuple[str, int], dict[str, Any]]) -> str:
    """One row of the table: ratio and half of its interval for each model and interval."""
    cells = []
    for model in MODELS:
        for interval in INTERVALS:
            entry = found.get((model, interval))
            reach = 0.0 if entry is None else (entry["ci95"][1] - entry["ci95"][0]) / 2
            cells.append("" if entry is None else f"{entry['ratio']:.3f} ± {reach:.3f}")
    return TABLE.row([LINES[tool], *cells])


def main() -> None:
    """Measure what the arguments ask for and print a table or, with ``--json``, one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="at most 15 s for each figure, for a first look")
    parser.add_argument("--seconds", type=float, help="at most so many seconds for each figure; 60 when not given")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--only", choices=list(LINES), action="append", help="only this tool; may be repeated")
    parser.add_argument("--model", choices=MODELS, action="append", help="only this model; may be repeated")
    parser.add_argument("--interval", choices=INTERVALS, type=int, action="append", help="only this interval")
    parser.add_argument("--threads", type=int, default=2, help="PyTorch's threads")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/watchglass-peers"), help="folder of environments")
    args = parser.parse_args()
    cache = args.cache.expanduser()
    tools = args.only or list(LINES)
    pythons = {
        name: environment(name, cache, lambda line: print(line, file=sys.stderr))
        for name in dict.fromkeys(tool.partition("-")[0] for tool in tools)
    }
    if not args.json:
        print(f"{sentence(machine())}; {args.threads} threads\n\n{TABLE.head}", flush=True)
    results: list[dict[str, Any]] = []
    for tool in tools:
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for model in args.model or MODELS:
            for interval in args.interval or INTERVALS:
                found[model, interval] = measure(
                    tool,
                    model,
                    interval,
                    python=pythons[tool.partition("-")[0]],
                    threads=args.threads,
                    seconds=args.seconds or (15.0 if args.quick else 60.0),
                    half_width=0.01 if args.quick else 0.0025,
                )
        results += found.values()
        if not args.json:
            print(show(tool, found), flush=True)
    if args.json:
        print(json.dumps({"machine": machine(), "threads": args.threads, "results": results}, indent=2))
    else:
        print()
        for name in pythons:
            entry = next(entry for entry in results if entry["tool"].startswith(name))
            print(sentence(entry["versions"]))


if __name__ == "__main__":
    main()
