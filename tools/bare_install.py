"""Install watchglass as users do, with nothing but what it needs, and run the quickstart, the demo and each command.

    python tools/bare_install.py             in a new virtual environment below a temporary folder
    python tools/bare_install.py --keep DIR  in DIR, which stays; an environment that is there is used again

First with the newest releases, then with the lowest that pyproject.toml allows. A development environment has every
extra, so only here it shows that something needs one: nothing may fail or warn, but by the line that names the extra.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
#: The lowest releases of what watchglass needs, and of what the demo trains with. PyTorch stays as constraints.txt has
#: it: the package index has no older build for the CPU, and those for CUDA take gigabytes.
LOWEST = ("numpy==1.23.*", "pyarrow==17.*", "typer==0.15.4", "rich==13.0.*", "psutil==5.9.*",
          "scikit-learn==1.3.*")  # fmt: skip

TRAIN = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(60):
    inputs = torch.randn(32, 8)
    loss = nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LONG = TRAIN.replace("range(60)", "range(10**9)")
WATCH = f"import watchglass\n{TRAIN}".replace(
    "for _", "hook = watchglass.watch(model, run='runs/watched', rules='default')\nfor _"
)
ANALYSE = """
import watchglass
run = watchglass.open_run("runs/one")
steps, losses = run.scalars("loss")
assert len(steps) == 60
print(run.table("steps")._repr_html_(), run.samples().rows(), run.summary() if hasattr(run, "summary") else "")
"""
NEEDS_PANDAS = "import watchglass\nwatchglass.open_run('runs/one').table('steps').to_pandas()\n"

#: What is run, the exit statuses that it may have, and what its last line says where it cannot do what it is asked for.
COMMANDS: tuple[tuple[str, set[int], str], ...] = (
    ("python -W error -c 'import watchglass'", {0}, ""),
    ("watchglass --help", {0}, ""),
    ("watchglass run --run runs/one --profile-steps 10:12 --keep-traces --python-profile 14:16 train.py", {0}, ""),
    ("watchglass run --rules default,system -m package.train", {0}, ""),
    ("watchglass run --run runs/digits --stop-on error --report digits.html DIGITS --fault learning-rate", {86}, ""),
    ("watchglass run --run runs/healthy --report healthy.html DIGITS --epochs 1", {0}, ""),
    ("python watch.py", {0}, ""),
    ("watchglass check runs/one", {0, 1, 2}, ""),
    ("watchglass check --format json runs/digits", {1, 2}, ""),
    ("watchglass check --format markdown runs/digits", {1, 2}, ""),
    ("watchglass check --format sarif runs/digits", {1, 2}, ""),
    ("watchglass check --format junit runs/digits", {1, 2}, ""),
    ("watchglass explain runs/digits", {0}, ""),
    ("watchglass report runs/one -o one.html", {0}, ""),
    ("watchglass report --profiler runs/one -o profiler.html", {0}, ""),
    ("watchglass report --profiler runs/one -o profiler.json", {0}, ""),
    ("watchglass show runs/one", {0}, ""),
    ("watchglass show runs", {0}, ""),
    ("watchglass show --json runs/one", {0}, ""),
    ("watchglass top runs/one", {0}, ""),
    ("watchglass follow runs/one", {0, 1, 2}, ""),
    ("watchglass trace runs/one -o trace.json.gz", {0}, ""),
    ("watchglass export runs/one -o exported", {0}, ""),
    ("watchglass rules", {0}, ""),
    ("watchglass rules DeadRelu", {0}, ""),
    ("watchglass actions", {0}, ""),
    ("watchglass profile runs/one --steps 5", {2}, "runs/one has ended"),
    ("watchglass backtest DeadRelu runs/one", {0, 1, 2}, ""),
    ("python analyse.py", {0}, ""),
    ("python pandas_needed.py", {1}, "pip install 'watchglass[analysis]'"),
    ("watchglass compact runs/one", {0}, ""),
    ("watchglass check runs/one", {0, 1, 2}, ""),
    ("watchglass rm runs/one --yes", {0}, ""),
    ("watchglass check s3://bucket/run", {2}, "pip install 'watchglass[object-store]'"),
    ("watchglass follow --metrics-port 9000 runs", {2}, "pip install 'watchglass[metrics]'"),
    ("watchglass mcp runs", {2}, "pip install 'watchglass[mcp]'"),
    ("watchglass export runs/digits --to tensorboard -o tb", {2}, "pip install 'watchglass[tensorboard]'"),
    ("watchglass run --tensorboard tb train.py", {2}, "pip install 'watchglass[tensorboard]'"),
)
#: A line that must not come, unless it is a finding, which ends with the name of its rule.
_BAD = re.compile(
    r"^watchglass: (warning|error): |Traceback|\w(Warning|Error)\b|no verdict on|no profiler report|pandas"
)
_FINDING = re.compile(r"^watchglass: (warning|error): .*\(\w+\)$")


def main() -> int:
    """Install and check both; returns the number of commands that did not do what they should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder of the environment, which stays")
    parser.add_argument("--only", choices=("newest", "lowest"), help="one of both")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        python = folder / "environment" / "bin" / "python"
        again = python.exists()
        if not again:
            timed("environment", [sys.executable, "-m", "venv", str(python.parents[1])])
        if options.only != "lowest":
            install(python, f"{REPOSITORY}[example]", upgrade=again)
        failed = 0 if options.only == "lowest" else check(python, Path(tempfile.mkdtemp(dir=temporary)), "newest")
        if options.only != "newest":
            install(python, *LOWEST, f"{REPOSITORY}[example]")
            failed += check(python, Path(tempfile.mkdtemp(dir=temporary)), "lowest")
    return min(failed, 100)


def install(python: Path, *requirements: str, upgrade: bool = False) -> None:
    """Install with pip, by the constraints of this repository."""
    words = ["-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check", "--no-compile"]
    words += ["--upgrade", "--upgrade-strategy", "eager"] if upgrade else []
    timed("installed", [str(python), *words, "--constraint", str(REPOSITORY / "constraints.txt"), *requirements])


def timed(what: str, command: list[str]) -> None:
    """Run a command that must succeed."""
    begun = time.monotonic()
    subprocess.run(command, check=True)
    print(f"{what} in {time.monotonic() - begun:.1f} s", flush=True)


def check(python: Path, folder: Path, name: str) -> int:
    """Run every command in a folder; returns how many did not do what they should."""
    (folder / "package").mkdir()
    files = {"train.py": TRAIN, "package/train.py": TRAIN, "watch.py": WATCH, "analyse.py": ANALYSE}
    for path, text in {**files, "pandas_needed.py": NEEDS_PANDAS}.items():
        (folder / path).write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WATCHGLASS", "PYTHON"))}
    environment |= {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "400",
    }
    digits = str(REPOSITORY / "examples" / "digits" / "train.py")
    failed, begun = 0, time.monotonic()
    for command, statuses, last in COMMANDS:
        start = time.monotonic()
        done = subprocess.run(
            command.replace("DIGITS", digits), shell=True, cwd=folder, env=environment, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        bad = wrong(done, statuses, last)
        failed += bool(bad)
        print(f"{name}: {'FAILED' if bad else 'passed'} {time.monotonic() - start:5.1f} s  {command}", flush=True)
        for line in bad:
            print(f"    {line}")
    print(f"{name}: {len(COMMANDS)} commands in {time.monotonic() - begun:.1f} s, {failed} failed", flush=True)
    return failed


def wrong(done: subprocess.CompletedProcess[str], statuses: set[int], last: str) -> list[str]:
    """What a command did that it should not."""
    lines = done.stderr.splitlines()
    if done.returncode not in statuses:
        return [f"exit status {done.returncode}", *lines]
    if last:
        return [] if lines and last in lines[-1] else [f"does not say {last}", *lines]
    return [line for line in lines if _BAD.search(line) and not _FINDING.match(line)]


if __name__ == "__main__":
    sys.exit(main())
