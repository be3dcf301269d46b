"""A watched process pays for Arrow only when statistics are written."""

import subprocess
import sys

CODE = """
import sys
import numpy as np
from watchglass import store
from watchglass.records import Fact, Mode, StepEnd

store.encode_facts([Fact("k", 0, "")])
store.encode_step_ends([StepEnd(0, Mode.TRAIN, 0, 0, 0, 0)])
heavy = {"pyarrow", "torch", "safetensors", "psutil", "typer", "rich", "plotly", "pandas"} & set(sys.modules)
print(sorted(heavy))
"""


def test_the_store_imports_only_numpy():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
