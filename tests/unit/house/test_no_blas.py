"""What runs in a training process uses no BLAS of NumPy, since most of it runs beside the script's thread.

OpenBLAS waits for ever if the script forks while another thread computes with several threads of it.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import watchglass

SOURCE = Path(watchglass.__file__).parent
#: What a training process imports.
PACKAGES = ("capture", "record", "stats", "store", "records", "control", "config", "session")
#: Tensors of PyTorch, in the thread that trains, and a vector in the same thread.
OTHERS = {"capture/pytorch/tensors/attention_rows.py", "capture/pytorch/saving/parameter_reader.py"}
#: Functions of NumPy that call BLAS or LAPACK.
OF_BLAS = {
    "convolve", "corrcoef", "correlate", "cov", "dot", "inner", "linalg", "matmul", "matvec", "polyfit", "tensordot",
    "vdot", "vecdot", "vecmat",
}  # fmt: skip


def calls_blas(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(op=ast.MatMult()) | ast.AugAssign(op=ast.MatMult()) | ast.Attribute(attr="dot"):
            return True
        case ast.Attribute(value=ast.Name("np"), attr=name):
            return name in OF_BLAS
        case ast.keyword(arg="optimize", value=value):  # of einsum
            return not (isinstance(value, ast.Constant) and value.value is False)
    return False


def uses(source: str) -> list[str]:
    """What a module has of BLAS."""
    return [ast.unparse(node) for node in ast.walk(ast.parse(source)) if calls_blas(node)]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_of_a_training_process_calls_blas(package: str) -> None:
    files = {path.relative_to(SOURCE).as_posix(): path for path in (SOURCE / package).rglob("*.py")}
    found = {name: uses(path.read_text()) for name, path in files.items() if name not in OTHERS}
    assert found
    assert {name: parts for name, parts in found.items() if parts} == {}


def test_what_is_looked_for_is_found() -> None:
    assert len(uses("a @ b\na @= b\nnp.dot(a, b)\nnp.linalg.norm(a)\nnp.einsum('i,i', a, b, optimize=True)")) == 5
    assert uses("np.einsum('i,i', a, b, optimize=False)\nnp.sum(a * b)") == []


FORKS = """
import os, sys, threading
import numpy as np
from watchglass.capture.facts.input_sketches import Correlations
from watchglass.capture.facts.neighbours import alike
from watchglass.stats import column_correlations

random = np.random.default_rng(0)
table, targets = random.standard_normal((512, 256)), random.standard_normal((128, 4))
rounds = 0

def computes():
    global rounds
    while True:
        Correlations().with_rows(table)
        alike(table[:128], targets, targets)
        rounds += 1

threading.Thread(target=computes, daemon=True).start()
while rounds < 200:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
os._exit(0)
"""


@pytest.mark.slow
def test_a_script_may_fork_while_the_recorder_computes() -> None:
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "2")
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    forked = subprocess.run(command, env={**os.environ, **threads}, timeout=120, capture_output=True, text=True)
    assert (forked.returncode, forked.stderr) == (0, "")
