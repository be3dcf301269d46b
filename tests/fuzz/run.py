"""Fuzz everything that reads foreign bytes, for as long as one likes: ``make fuzz FUZZ="--seconds 600"``.

Guided by coverage where atheris is installed (``pip install atheris``), by chance elsewhere. Each target runs in a
process of its own, so that a crash, a hang or a lack of memory is a finding like any other and the next target goes on.
Findings are printed with their traceback, and their inputs kept in a folder; ``--replay FILE`` runs one again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

#: Longest input in bytes; what a target makes of it is larger.
MAX_INPUT = 400
#: Room for imports and threads, beyond what a reader may take.
_ADDRESS_SPACE = 6 << 30
_SUMMARY = re.compile(r"executions (\d+) coverage (\S+) findings (\d+)")


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 where anything was found; exits with 2 for arguments that are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=170.0, help="for all targets together")
    parser.add_argument("--target", action="append", default=[], help="only these; all if none is named")
    parser.add_argument("--targets", default="fuzz.targets:TARGETS", help="module and name of the targets")
    parser.add_argument("--findings", default="", help="folder for inputs of findings; a new one if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("auto", "atheris", "chance"), default="auto")
    parser.add_argument("--replay", metavar="FILE", default="", help="run one --target on one input")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        return _child(options)
    known = sorted(_load(options.targets))
    if unknown := [name for name in options.target if name not in known]:
        parser.exit(2, f"--target must be one of {', '.join(known)} but got {unknown[0]}\n")
    if options.replay:
        if len(options.target) != 1:
            parser.exit(2, f"--replay needs one --target but got {len(options.target)}\n")
        _replay(_load(options.targets)[options.target[0]], Path(options.replay).read_bytes())
        return 0
    folder = Path(options.findings or tempfile.mkdtemp(prefix="watchglass-fuzz-"))
    names = options.target or known
    found = sum(_run_target(name, options, folder, options.seconds / len(names)) for name in names)
    print(f"{found} findings" + (f"; their inputs are in {folder}" if found else ""))
    return 1 if found else 0


def _load(targets: str) -> dict[str, Callable[[bytes], None]]:
    """Targets that take bytes, by name."""
    from fuzz.choices import Choices

    module, _, name = targets.partition(":")
    known = getattr(importlib.import_module(module), name)
    return {key: lambda data, target=target: target(Choices(data)) for key, target in known.items()}


def _replay(target: Callable[[bytes], None], data: bytes) -> None:
    """Run a target on one input, within the bounds of all others."""
    from fuzz.bounds import bounded, peak_bytes

    target(b"")
    with bounded(peak_bytes()):
        target(data)


def _run_target(name: str, options: argparse.Namespace, folder: Path, seconds: float) -> int:
    """Run one target in a separate process; returns the number of findings."""
    own = folder / name
    own.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, __file__, "--child", "--target", name, "--targets", options.targets, "--seconds", str(seconds),
        "--findings", str(own), "--seed", str(options.seed), "--engine", options.engine,
    ]  # fmt: skip
    began = time.monotonic()
    output = ""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=2 * seconds + 120)
        status, output = ended.returncode, ended.stdout + ended.stderr
    except subprocess.TimeoutExpired:
        status = -1
    summaries = _SUMMARY.findall(output)
    executions, coverage, findings = summaries[-1] if summaries else ("?", "?", "0")
    crashed = status != 0 or not summaries
    took = time.monotonic() - began
    print(
        f"{name:18} {took:6.1f} s  {executions:>9} executions  {coverage:>6} covered  {findings} findings", flush=True
    )
    for text in sorted(own.glob("*.txt")):
        print(f"  {text.with_suffix('.input')}\n{text.read_text(errors='replace').rstrip()}")
    if crashed:
        print(f"  the process ended with status {status}:\n" + "\n".join(output.splitlines()[-25:]))
    return int(findings) + crashed


def _child(options: argparse.Namespace) -> int:
    atheris = _atheris(options.engine)
    if atheris is not None:
        with atheris.instrument_imports(include=["watchglass"]):
            targets = _load(options.targets)
    else:
        targets = _load(options.targets)
    from fuzz.bounds import peak_bytes

    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    campaign = _Campaign(targets[options.target[0]], Path(options.findings))
    campaign.run(b"")  # makes the seeds, which are not what is measured
    campaign.before_bytes = peak_bytes()
    if atheris is not None:
        return _guided(atheris, campaign, options)
    generator = random.Random(options.seed)
    deadline = time.monotonic() + options.seconds
    while time.monotonic() < deadline:
        campaign.run(generator.randbytes(generator.randrange(MAX_INPUT)))
    print(campaign.summary("?"), flush=True)
    return 0


def _atheris(engine: str):  # type: ignore[no-untyped-def]
    if engine == "chance":
        return None
    try:
        import atheris
    except ImportError:
        if engine == "atheris":
            raise
        return None
    return atheris


def _guided(atheris, campaign: _Campaign, options: argparse.Namespace) -> int:  # type: ignore[no-untyped-def]
    generator = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as corpus:
        for number in range(64):
            Path(corpus, str(number)).write_bytes(generator.randbytes(8 + 3 * number))
        # What goes wrong is caught and counted by the campaign; its own bounds are set, so libFuzzer's are not.
        atheris.Setup(
            [sys.argv[0], corpus, f"-max_total_time={max(1, int(options.seconds))}", f"-seed={options.seed + 1}",
             f"-max_len={MAX_INPUT}", "-timeout=0", "-rss_limit_mb=0", "-print_final_stats=1", "-verbosity=1"],
            campaign.run,
        )  # fmt: skip
        reader, writer = os.pipe()
        kept = os.dup(2)
        pid = os.fork()
        if pid == 0:
            # libFuzzer ends the process when its time is over, so what it printed is read by the parent.
            os.close(reader)
            os.dup2(writer, 2)
            atheris.Fuzz()
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "r", errors="replace") as lines:
            text = lines.read()
        _, status = os.waitpid(pid, 0)
        os.close(kept)
    runs = re.findall(r"stat::number_of_executed_units: (\d+)", text) or re.findall(r"^#(\d+)", text, re.MULTILINE)
    covered = re.findall(r"cov: (\d+)", text)
    campaign.executions = int(runs[-1]) if runs else 0
    if status:
        print(text[-3000:])
    print(campaign.summary(covered[-1] if covered else "?"), flush=True)
    return 1 if status else 0


class _Campaign:
    """Runs one target again and again, and writes down every way in which it fails once."""

    def __init__(self, target: Callable[[bytes], None], folder: Path) -> None:
        self.executions = 0
        self.before_bytes = 1 << 62
        self._target, self._folder = target, folder

    def run(self, data: bytes) -> None:
        from fuzz.bounds import bounded

        self.executions += 1
        try:
            with bounded(self.before_bytes):
                self._target(data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._keep(data, error)

    def summary(self, coverage: str) -> str:
        findings = len(list(self._folder.glob("*.input")))
        return f"executions {self.executions} coverage {coverage} findings {findings}"

    def _keep(self, data: bytes, error: BaseException) -> None:
        """One input for each place where an error comes from."""
        places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        ours = [place for place in places if "watchglass" in place or "/fuzz/" in place]
        name = hashlib.sha256(f"{type(error).__name__} {ours[-1:]}".encode()).hexdigest()[:12]
        path = self._folder / f"{name}.input"
        if not path.exists() or path.stat().st_size > len(data):
            path.write_bytes(data)
            lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-6)
            path.with_suffix(".txt").write_text("".join(lines)[-3000:], errors="replace")


if __name__ == "__main__":
    sys.exit(main())
