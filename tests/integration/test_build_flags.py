"""How the native kernel is compiled: nothing that would change numbers, here or in the process that loads it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: Changes what is computed, for everybody in the process even; or ties a wheel to the machine that it was built on; or
#: brings a pool of threads of its own.
FORBIDDEN = re.compile(
    r"-(ffast-math|Ofast|funsafe-math-optimizations|fassociative-math|freciprocal-math|ffinite-math-only"
    r"|march=native|mtune=native|mcpu=native|fopenmp\S*|qopenmp|lgomp|lomp|liomp5)"
)
#: Undoes the same where a user's CFLAGS ask for it.
REQUIRED = {"-fno-fast-math", "-ffp-contract=off"}

#: The same, said in a source; or the rounding and flushing of the whole thread.
SWITCHED = re.compile(
    r"#\s*pragma\s+(omp|GCC\s+optimize|clang\s+fp|STDC\s+FP_CONTRACT\s+ON)|__attribute__\s*\(\(\s*(__)?optimize|omp\.h"
    r"|_mm_setcsr|_MM_SET_(FLUSH|DENORMALS)|fesetround"
)

#: Runs setup.py up to what it hands to setuptools, and prints what it would compile and link with.
SHOW = """
import setuptools, sys
def setup(**given):
    for extension in given["ext_modules"]:
        print(*extension.extra_compile_args, *extension.extra_link_args, *map("-l{}".format, extension.libraries))
setuptools.setup = setup
exec(compile(open("setup.py").read(), "setup.py", "exec"), {"__name__": "__main__"})
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no kernel is built there")
def test_what_setup_asks_the_compiler_for(repository: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SHOW], cwd=repository, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert not FORBIDDEN.search(line), line
    flags = line.split()
    assert set(flags) >= REQUIRED
    assert "-O3" in flags
    assert flags.count("-fno-fast-math") == 2, "linking with -ffast-math is what flushes subnormals in a process"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no compiler")
def test_what_the_compiler_is_called_with(repository: Path, tmp_path: Path) -> None:
    """All of it, with what Python itself was built with, and with a user's flags that ask for the worst before."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, tmp_path / name)
    shutil.copytree(
        repository / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    )
    command = [sys.executable, "setup.py", "--verbose", "build_ext", "--build-lib", "lib", "--build-temp", "temp"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "CFLAGS": "-ffast-math"}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    calls = [
        line for line in done.stdout.splitlines() if re.search(r"(summaries|pool)\.(c|o)\b", line) and " -" in line
    ]
    assert len(calls) == 3, done.stdout
    for call in calls:
        flags = call.split()
        given = [index for index, flag in enumerate(flags) if flag == "-ffast-math"]
        assert max(given, default=-1) < flags.index("-fno-fast-math"), "the last one holds"
        assert not FORBIDDEN.search(" ".join(flag for flag in flags if flag != "-ffast-math")), call
    assert (tmp_path / "lib" / "watchglass" / "stats" / "native" / "libsummaries.so").exists()


def test_no_source_of_the_kernel_switches_them_on_by_itself(repository: Path) -> None:
    for source in sorted((repository / "src/watchglass/stats/native").glob("*.[ch]")):
        text = source.read_text(encoding="utf-8")
        assert not SWITCHED.search(text), source.name
