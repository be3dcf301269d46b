"""What it costs to write a run for TensorBoard, reading it included.

    python benchmarks/event_files.py
    python benchmarks/event_files.py --quick

The run is simulated (simulated_runs.py). Figures are of processor time. Leaves with status 1 where a target is missed.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from figures import Result, arguments, measure
from simulated_runs import Simulated, simulate
from watchglass import diagnose
from watchglass.run import open_run
from watchglass.store import LocalStore
from watchglass.trackers import ExportedRun, TensorBoardExport


def _written(run: str, folder: Path, *, histograms: bool) -> tuple[ExportedRun, float]:
    """What was written, and the seconds of processor time that it took."""
    opened = open_run(run)
    begun_s = time.process_time()
    with closing(TensorBoardExport(opened, str(folder), diagnose.verdict, histograms=histograms)) as export:
        export.write_new(ended=True)
    return export.written, time.process_time() - begun_s


def events(folder: Path, *, quick: bool) -> list[Result]:
    """Scalars and histograms a second."""
    run = str(folder / "run")
    simulate(LocalStore(run), Simulated(steps=100 if quick else 400, tensors=300))
    _written(run, folder / "warm", histograms=True)
    scalars, scalars_s = _written(run, folder / "scalars", histograms=False)
    both, both_s = _written(run, folder / "both", histograms=True)
    size = sum(file.stat().st_size for file in (folder / "scalars").rglob("events.*"))
    return [
        Result("events", "scalars", scalars.scalars / scalars_s, "1/s", 100_000, least=True),
        Result("events", "bytes of a scalar", size / scalars.scalars, "bytes"),
        Result("events", "histograms", both.histograms / max(both_s - scalars_s, 1e-9), "1/s"),
    ]


def main() -> None:
    """Measure; leaves with status 1 where a target is missed."""
    parser = arguments(__doc__, BENCHMARKS, "a run of 100 steps")
    measure(parser, parser.parse_args(), BENCHMARKS)


BENCHMARKS = {"events": events}

if __name__ == "__main__":
    main()
