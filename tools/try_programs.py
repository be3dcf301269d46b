"""Start each benchmark, tool and example in its shortest form, so that none of them rots.

    python tools/try_programs.py              all
    python tools/try_programs.py peers growth  those whose command has one of these words

A program that fails is shown with its output. One that still runs after some seconds is ended, and counts as running.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
#: Programs, each with its shortest arguments. FOLDER is one that is removed at the end.
PROGRAMS = (
    "benchmarks/peers.py --only watchglass-statistics --model mlp --interval 10 --seconds 1",
    "benchmarks/overhead.py --only default --model mlp --seconds 1",
    "benchmarks/depth.py --modules 10 --parameters 10",
    "benchmarks/growth.py --steps 60",
    "benchmarks/launching.py --runs 1",
    "benchmarks/loading.py --batches 20",
    "benchmarks/loops.py --blocks 1 --steps 8",
    "benchmarks/short_steps.py --blocks 1 --steps 8 --ahead 8",
    "benchmarks/compiled_steps.py --only jax --part calls --seconds 1",
    "benchmarks/compiled_steps.py --only keras-torch --model perceptron --seconds 1",
    "benchmarks/sampling.py --seconds 1 --processes 1",
    "benchmarks/device_statistics.py --repeats 1",
    "benchmarks/store.py --quick",
    "benchmarks/scale.py --quick",
    "benchmarks/rules.py --quick",
    "benchmarks/fleet.py --quick",
    "benchmarks/dashboard.py --quick",
    "benchmarks/event_files.py --quick",
    "benchmarks/slow_zoo/slow_zoo.py --folder FOLDER/slow_zoo",
    "tools/rule_pages.py --help",
    "examples/digits/train.py --epochs 1",
    "examples/lstm/train.py --epochs 1",
    "examples/llm/train.py --steps 2",
    "examples/llm/stays_vague.py",
    "examples/keras_digits/train.py --epochs 1",
    "examples/tensorflow_wine/train.py --epochs 1",
    "examples/jax_digits/train.py --epochs 1",
    "examples/rules.py DeadRelu --healthy",
)
#: What is not tried here, with the reason.
SKIPPED = {
    "benchmarks/peers.py with smdebug, TensorBoard and wandb": "each needs an environment of its own with downloads",
    "benchmarks/zoo/score.py": "tests/integration/test_zoo.py scores a part of the zoo",
    "make demo": "tools/bare_install.py runs its programs",
}
#: How a program ends that needs a GPU, or a framework that `make test-frameworks` installs.
_LACKS = re.compile(r"(no GPU that PyTorch can use|No module named '(keras|tensorflow|jax|flax|optax)')$")
#: Programs that are tried at once, and the seconds of processor time that each gets: on a busy machine all take longer.
_AT_ONCE, _SECONDS, _LONGEST_S = 2, 4.0, 120.0


def main(words: list[str]) -> int:
    """Try the programs; returns how many failed."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = [each for each in PROGRAMS if not words or any(word in each for word in words)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            failed = sum(not passed for passed in pool.map(tried, (each.replace("FOLDER", folder) for each in chosen)))
    for what, reason in SKIPPED.items():
        print(f"skipped         {what}: {reason}")
    return failed


def tried(program: str) -> bool:
    """Run one for some seconds; returns whether it did not fail."""
    begun = time.monotonic()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, *program.split()], cwd=REPOSITORY, stdout=said, stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip
        while child.poll() is None and spent_s(child.pid) < _SECONDS and time.monotonic() - begun < _LONGEST_S:
            time.sleep(0.1)
        status, word = (0, "runs") if child.poll() is None else (child.returncode, "passed")
        if word == "runs":
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        said.seek(0)
        text = said.read().decode(errors="replace").strip() if status else ""
        if _LACKS.search(text):
            status, word, text = 0, "skipped", text.splitlines()[-1]
        line = f"{'FAILED' if status else word:7} {time.monotonic() - begun:5.1f} s {program}"
        print(f"{line}\n    {text}" if text else line, flush=True)
    return status == 0


def spent_s(pid: int) -> float:
    """Processor time of a process and of its children."""
    try:
        process = psutil.Process(pid)
        return sum(sum(each.cpu_times()[:4]) for each in (process, *process.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
