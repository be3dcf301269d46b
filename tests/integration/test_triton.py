"""Triton's kernels: their tests in Triton's interpreter, and kernels compiled for GPUs that this machine lacks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devices.device_cases import INTERPRETED

TESTS = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(INTERPRETED, reason="this process has the interpreter: Triton cannot also compile"),
]


def test_the_same_with_triton_in_its_interpreter() -> None:
    files = ["unit/capture/test_device.py", "devices/interpreted_triton.py", "properties/test_device_properties.py"]
    paths = [str(TESTS / file) for file in files]
    result = assert_ends_well("-m", "pytest", "-q", "-p", "no:cacheprovider", *paths, TRITON_INTERPRET="1")
    assert "passed" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_kernels_compile_for_a_gpu(target: str, tmp_path: Path) -> None:
    assert_ends_well(
        str(TESTS / "devices" / "compiled_kernels.py"), target, TRITON_CACHE_DIR=str(tmp_path), PYTHONPATH=str(TESTS)
    )


def assert_ends_well(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run another Python process."""
    result = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path[1:]]), **environment},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result
