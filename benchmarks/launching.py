"""The processor time of launcher, evaluator, sampler and capture, in addition to that of a short run.

    python benchmarks/launching.py              five runs, some 20 seconds
    python benchmarks/launching.py --runs 20    more of them

README.md in this folder explains the result.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tables import machine, sentence, versions

#: Most that each may be, in seconds; None for what is only shown.
TARGETS = {
    "everything that watching adds to a run": 1.5,
    "launcher and evaluator": 0.8,
    "before the first line of the script": 0.3,
    "bringing capture into the training process": None,
    "watchglass --help": 0.3,
    "import watchglass": 0.05,
    "python that does nothing": None,
}

# The script that is launched: what the launcher has used by now; then a process that trains, and what that has used.
_OUTER = """
import os, subprocess, sys, time
launcher = open(f"/proc/{os.getppid()}/schedstat").read().split()[0]
own = time.process_time()
child = subprocess.Popen([sys.executable, sys.argv[1]])
_, _, used = os.wait4(child.pid, 0)
script = used.ru_utime + used.ru_stime + time.process_time()
with open(sys.argv[2], "w") as file:
    file.write(f"{int(launcher) / 1e9 + own} {script}")
"""

_INNER = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    inputs, labels = torch.randn(8, 10), torch.randint(0, 2, (8,))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
"""

_IMPORTING = "import torch, time; begun = time.process_time(); import os\n{}print(time.process_time() - begun)"
_CAPTURE = "from watchglass.session import on_framework_imported\nimport watchglass.capture.pytorch\n"


def used_s(command: list[str], folder: str) -> float:
    """Processor time of a command and of the processes that it waits for."""
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with wait status {status}")
    return used.ru_utime + used.ru_stime


def one_run(folder: str) -> dict[str, float]:
    """One of each."""
    python = [sys.executable]
    whole_s = used_s([*python, "-m", "watchglass", "run", "outer.py", "inner.py", "used"], folder)
    first_s, script_s = map(float, (Path(folder) / "used").read_text().split())
    bare_s = used_s([*python, "outer.py", "inner.py", "used"], folder)
    capture_s = subprocess.run(
        [*python, "-c", _IMPORTING.format(_CAPTURE)], capture_output=True, text=True, check=True, cwd=folder
    ).stdout
    return {
        "everything that watching adds to a run": whole_s - bare_s,
        "launcher and evaluator": whole_s - script_s,
        "before the first line of the script": first_s,
        "bringing capture into the training process": float(capture_s),
        "watchglass --help": used_s([*python, "-m", "watchglass", "--help"], folder),
        "import watchglass": used_s([*python, "-c", "import watchglass"], folder),
        "python that does nothing": used_s([*python, "-c", "pass"], folder),
    }


def measure(runs: int) -> dict[str, list[float]]:
    """Seconds of each of several runs, after one that does not count: it compiles what is not compiled yet."""
    with tempfile.TemporaryDirectory(prefix="launching-") as folder:
        (Path(folder) / "outer.py").write_text(_OUTER)
        (Path(folder) / "inner.py").write_text(_INNER)
        one_run(folder)
        found = [one_run(folder) for _ in range(runs)]
    return {name: [each[name] for each in found] for name in TARGETS}


def main() -> None:
    """Measure, and print a table or, with ``--json``, one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    args = parser.parse_args()
    found = measure(args.runs)
    packages = ("watchglass", "torch", "numpy")
    if args.json:
        about = {"machine": machine(), "versions": versions(*packages)}
        print(json.dumps({**about, "seconds": found, "targets": TARGETS}, indent=2))
        return
    print(f"{sentence(machine())}; {sentence(versions(*packages))}\n")
    print(f"{'seconds of processor time':<45} {'least':>6} {'median':>7} {'target':>7}  met")
    for name, target in TARGETS.items():
        least, middle = min(found[name]), median(found[name])
        met = "" if target is None else "yes" if middle <= target else "NO"
        print(f"{name:<45} {least:6.3f} {middle:7.3f} {'' if target is None else target:>7}  {met}")


if __name__ == "__main__":
    main()
