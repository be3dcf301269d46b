"""What capture works out for any framework is imported without one."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from watchglass.capture import FRAMEWORKS

ADAPTERS = {
    "pytorch", "xgboost", "transformers", "accelerate", "lightning", "keras", "tensorflow", "jax", "optax", "flax",
    "equinox",
}  # fmt: skip


def test_files_of_capture_outside_the_adapters_load_no_framework(repository: Path) -> None:
    package = repository / "src" / "watchglass"
    paths = [path.relative_to(package.parent) for path in (package / "capture").rglob("*.py")]
    names = [".".join(path.with_suffix("").parts) for path in paths if path.parts[2] not in ADAPTERS]
    assert {"watchglass.capture.facts.input_sketches", "watchglass.capture.arrays"} <= {*names}
    code = f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\nprint([*sys.modules])"
    loaded = ast.literal_eval(
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    )
    assert not {*FRAMEWORKS} & {*loaded}
