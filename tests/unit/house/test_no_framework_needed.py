"""What capture works out for any framework is imported without one."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from watchglass.capture import FRAMEWORKS


def test_files_of_capture_outside_the_adapters_load_no_framework(repository: Path) -> None:
    names = [f"watchglass.capture.{path.stem}" for path in (repository / "src/watchglass/capture").glob("*.py")]
    assert {
        "watchglass.capture.first_bad_analysis",
        "watchglass.capture.input_sketches",
        "watchglass.capture.call_order",
    } <= {*names}
    code = f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\nprint([*sys.modules])"
    loaded = ast.literal_eval(
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    )
    assert not {*FRAMEWORKS} & {*loaded}
