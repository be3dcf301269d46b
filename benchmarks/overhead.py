"""What watching costs: the time of a watched training step over that of a bare one.

    python benchmarks/overhead.py                    everything, up to ten minutes for each line
    python benchmarks/overhead.py --quick            the same, coarser, in a few minutes
    python benchmarks/overhead.py --only statistics-1 --model mlp --json

README.md in this folder explains the result.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

import device
import limits
from configurations import CONFIGURATIONS, ON_DEVICE, TIMES_LIMIT, Configuration
from pairs import FEWEST_BLOCKS, Comparison, compare
from tables import Progress, Table, machine, sentence, versions
from watched import Measured, complaints, housekeeper, watching
from workloads import WORKLOADS, Training, compiled_transformer, mlp_by_hand

COMPILED, BY_HAND = "compiled transformer", "mlp by hand"
MODELS: dict[str, Callable[[], Training]] = {
    **WORKLOADS,
    COMPILED: compiled_transformer,
    BY_HAND: mlp_by_hand,
}
PACKAGES = ("watchglass", "torch", "numpy")

#: The targets are for so many threads.
TARGET_THREADS = 2

#: A line is done once the control is known to a quarter of what its target allows, but no finer than a tenth of a
#: percent, which would take hours on the smallest model.
_SHARE_OF_TARGET, _FINEST, _COARSEST = 0.25, 0.001, 0.01

TABLE = Table(
    [
        ("configuration", 13), ("model", 20), ("bare ms", 7), ("ratio", 6), ("bound", 6), ("95 %", 15), ("control", 7),
        ("target", 6), ("met", 4), ("capture MB", 10), ("limit ms", 8), ("capture ms", 10), ("times limit", 11),
    ]
)  # fmt: skip


def half_width(target: float, *, coarse: bool = False) -> float:
    """How well the control must be known for a target."""
    return _COARSEST if coarse else min(_COARSEST, max(_FINEST, _SHARE_OF_TARGET * (target - 1)))


def measure(
    model: str,
    configuration: Configuration,
    *,
    half_width: float,
    limit_s: float,
    processor_time: bool = False,
    progress: Callable[[Comparison], None] = lambda _: None,
) -> Measured:
    """Compare one watched training with two bare ones that start equal."""
    subject, bare, other = (MODELS[model]() for _ in range(3))
    for training in (bare, other):
        training.step()  # so that PyTorch's own threads are there before ours are looked for
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        with watching(subject, configuration, folder) as watched:
            keep_house = housekeeper(watched)
            three = (watched.step, bare.step, other.step)

            def off_the_clock(rounds: int) -> None:
                for _ in range(rounds):
                    for step in three:
                        step()

            def before_block() -> None:
                keep_house()
                avoided = configuration.avoided
                off_the_clock(1 if avoided and watched.steps % avoided == 0 else 0)

            off_the_clock(configuration.warm_up)
            gc.collect()
            watched.hook.port.settle()
            begun, begun_s = watched.steps, watched.bound_s()
            comparison = compare(
                *three,
                block=configuration.block,
                turn=configuration.turn,
                half_width=half_width,
                limit_s=limit_s,
                charged_s=watched.background,
                trim=configuration.trim,
                before_block=before_block,
                progress=progress,
                processor_time=processor_time,
            )
            watched.hook.port.settle()
            bound_s, steps = watched.bound_s() - begun_s, watched.steps - begun
        # Counted on an eager twin: a compiled model shows its outputs to hooks only while it is being compiled.
        seen = limits.captured(MODELS[model.removeprefix("compiled ")](), configuration.captured)
        bound = 1 + bound_s / (steps * comparison.bare_ms / 1e3)
        return Measured(comparison, seen, complaints(watched, configuration, seen), bound)


def result(
    model: str, configuration: Configuration, measured: Measured, bytes_per_s: float, *, judged: bool = True
) -> dict[str, Any]:
    """One entry of ``results``.

    Args:
        model: Its name.
        configuration: What was measured.
        measured: The measurement; one with complaints meets no target.
        bytes_per_s: The bandwidth that captures are held against.
        judged: Whether the targets hold; they do not with other numbers of threads.
    """
    watched, control = measured.comparison.watched, measured.comparison.control
    target = configuration.targets[model]
    return {
        "model": model,
        "config": configuration.name,
        "bare_ms": round(measured.comparison.bare_ms, 4),
        "ratio": round(watched.ratio, 4),
        "bound": None if math.isnan(measured.bound) else round(measured.bound, 4),
        "ci95": [round(watched.low, 4), round(watched.high, 4)],
        "control": round(control.ratio, 4),
        "control_ci95": [round(control.low, 4), round(control.high, 4)],
        "blocks": measured.comparison.blocks,
        "target": target if judged else None,
        "met": watched.ratio <= target and not measured.complaints if judged else None,
        "certain": _certain(measured, target) if judged else None,
        **_against_limit(configuration, measured, bytes_per_s, judged=judged),
        "complaints": measured.complaints,
    }


def _certain(measured: Measured, target: float) -> bool:
    watched = measured.comparison.watched
    enough = measured.comparison.blocks >= FEWEST_BLOCKS and not watched.low <= target < watched.high
    return enough or bool(measured.complaints)


def _against_limit(
    configuration: Configuration, measured: Measured, bytes_per_s: float, *, judged: bool
) -> dict[str, Any]:
    limit_ms = measured.seen.size / bytes_per_s * 1e3
    found = {"captured_bytes": measured.seen.size, "limit_ms": round(limit_ms, 4)}
    if not configuration.interval:
        return {**found, "capture_ms": None, "times_limit": None, "times_target": None, "times_met": None}
    # What is paid on the steps between counts as the capture's too: nothing of the difference is left out.
    extra = measured.comparison.watched.ratio - 1
    capture_ms = extra * measured.comparison.bare_ms * configuration.interval
    judged = judged and configuration.judged_by_limit
    return {
        **found,
        "capture_ms": round(capture_ms, 4),
        "times_limit": round(capture_ms / limit_ms, 2),
        "times_target": TIMES_LIMIT if judged else None,
        "times_met": capture_ms <= TIMES_LIMIT * limit_ms if judged else None,
    }


def show(entry: dict[str, Any]) -> str:
    """The row of an entry, and its complaints below it."""
    low, high = entry["ci95"]
    met = {None: "", True: "yes", False: "NO"}[entry["met"]] + ("?" if entry["certain"] is False else "")
    times = "" if entry["times_limit"] is None else f"{entry['times_limit']:.1f}"
    cells = [
        entry["config"], entry["model"], f"{entry['bare_ms']:.3f}", f"{entry['ratio']:.4f}",
        "" if entry["bound"] is None else f"{entry['bound']:.4f}", f"{low:.4f}-{high:.4f}",
        f"{entry['control']:.4f}", entry["target"], met, f"{entry['captured_bytes'] / 1e6:.1f}",
        f"{entry['limit_ms']:.3f}", "" if entry["capture_ms"] is None else f"{entry['capture_ms']:.3f}",
        times + {None: "", True: "", False: " NO"}[entry["times_met"]],
    ]  # fmt: skip
    return "\n".join([TABLE.row(cells), *(f"    {complaint}" for complaint in entry["complaints"])])


def summary(results: list[dict[str, Any]]) -> str:
    """How many targets are met, and which are not."""
    ratios = [entry for entry in results if entry["met"] is not None]
    times = [entry for entry in results if entry["times_met"] is not None]
    missed = [f"{entry['config']} {entry['model']}: {entry['ratio']}" for entry in ratios if not entry["met"]]
    slow = [f"{entry['config']} {entry['model']}: {entry['times_limit']}" for entry in times if not entry["times_met"]]
    lines = [
        f"{len(ratios) - len(missed)} of {len(ratios)} targets met"
        + (f"; missed: {', '.join(missed)}" if missed else ""),
        f"{len(times) - len(slow)} of {len(times)} within {TIMES_LIMIT:g} times the physical limit"
        + (f"; beyond: {', '.join(slow)}" if slow else ""),
    ]
    if not device.available():
        lines.append("no GPU here: device-1 was not measured")
    return "\n".join(lines)


def measured_entries(args: argparse.Namespace, bytes_per_s: float) -> Iterator[dict[str, Any]]:
    """Measure what was chosen, line by line."""
    limit_s = args.seconds or (15.0 if args.quick else 600.0)
    judged = args.threads == TARGET_THREADS
    for configuration in (*CONFIGURATIONS, *([ON_DEVICE] if device.available() else [])):
        for model, target in configuration.targets.items():
            if not _chosen(configuration.name, args.only) or not _chosen(model, args.model):
                continue
            how: dict[str, Any] = {
                "half_width": half_width(target, coarse=args.quick),
                "limit_s": limit_s,
                "progress": Progress(f"{configuration.name}, {model}"),
            }
            if configuration is ON_DEVICE:
                yield result(model, configuration, device.measure(configuration, **how), limits.bandwidth("cuda"))
            else:
                measured = measure(model, configuration, processor_time=args.processor_time, **how)
                yield result(model, configuration, measured, bytes_per_s, judged=judged)


def _chosen(name: str, names: list[str] | None) -> bool:
    return names is None or name in names


def main() -> None:
    """Measure what the arguments ask for and print a table or, with ``--json``, one object."""
    names = [configuration.name for configuration in (*CONFIGURATIONS, ON_DEVICE)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="at most 15 s for each line, for a first look")
    parser.add_argument("--seconds", type=float, help="at most so many seconds for each line")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--only", choices=names, action="append", help="only this configuration; may be repeated")
    parser.add_argument(
        "--model", choices=[*MODELS, device.MODEL], action="append", help="only this model; may be repeated"
    )
    parser.add_argument("--threads", type=int, default=TARGET_THREADS, help="PyTorch's threads; targets are for 2")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="compare processor time; needs --threads 1, and suits a busy machine",
    )
    args = parser.parse_args()
    if args.processor_time and args.threads != 1:
        parser.error(f"--processor-time needs --threads 1 but got --threads {args.threads}")

    torch.set_num_threads(args.threads)
    bytes_per_s = limits.bandwidth()
    about = {"machine": machine(), "versions": versions(*PACKAGES), "threads": args.threads}
    results = []
    if not args.json:
        print(f"{sentence(machine())}; {sentence(versions(*PACKAGES))}")
        print(f"{args.threads} threads; a sum over memory reads {bytes_per_s / 1e9:.1f} GB/s\n")
        print(TABLE.head, flush=True)
    for entry in measured_entries(args, bytes_per_s):
        results.append(entry)
        if not args.json:
            print(show(entry), flush=True)
    if args.json:
        print(json.dumps({**about, "bytes_per_s": round(bytes_per_s), "results": results}, indent=2))
    else:
        print(f"\n{summary(results)}")


if __name__ == "__main__":
    main()
