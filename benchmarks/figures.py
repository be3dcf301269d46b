"""Figures of a benchmark with their targets: measured one after the other, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tables import Table, machine, sentence, versions


@dataclass(frozen=True)
class Result:
    """One figure.

    Attributes:
        benchmark: What it belongs to.
        figure: Its description.
        value: How much.
        unit: Of what.
        target: What it must reach; None where it is for information.
        least: Whether it must be at least the target, not at most.
    """

    benchmark: str
    figure: str
    value: float
    unit: str
    target: float | None = None
    least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.least else self.value <= self.target

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {**vars(self), "met": self.met}


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The power of size that time grows with, by least squares of the logarithms: 1 is linear."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


TABLE = Table([("benchmark", 9), ("figure", 42), ("value", 10), ("unit", 13), ("target", 8), ("met", 3)])


def show(result: Result) -> str:
    """One row of the table."""
    digits = max(0, 2 - int(math.log10(max(result.value, 1e-3)))) if result.value else 0
    target = "" if result.target is None else f"{'>=' if result.least else '<='} {result.target:g}"
    met = {None: "", True: "yes", False: "NO"}[result.met]
    return TABLE.row([result.benchmark, result.figure, f"{result.value:.{digits}f}", result.unit, target, met])


def arguments(about: str | None, names: Iterable[str], quick: str) -> argparse.ArgumentParser:
    """The options that every such benchmark has.

    Args:
        about: What it says of itself.
        names: What it can measure.
        quick: What ``--quick`` does.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def measure(
    parser: argparse.ArgumentParser, args: argparse.Namespace, benchmarks: Mapping[str, Callable[..., Iterable[Result]]]
) -> None:
    """Measure what the arguments ask for; leaves with status 1 where a target is missed."""
    unknown = sorted(set(args.names) - set(benchmarks))
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; known are {', '.join(benchmarks)}")
    about = {"machine": machine(), "versions": versions("watchglass", "numpy", "pyarrow"), "quick": args.quick}
    if not args.json:
        print(f"{sentence(about['machine'])}; {sentence(about['versions'])}\n\n{TABLE.head}", flush=True)
    results: list[Result] = []
    for name in args.names or benchmarks:
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=os.environ.get("BENCHMARK_FOLDER")) as folder:
            for result in benchmarks[name](Path(folder), quick=args.quick):
                results.append(result)
                if not args.json:
                    print(show(result), flush=True)
    if args.json:
        print(json.dumps({**about, "results": [result.to_json() for result in results]}, indent=2))
    sys.exit(any(result.met is False for result in results))
