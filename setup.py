"""Builds the native kernel; everything else about the package is in pyproject.toml.

The kernel is a plain C library that is loaded with ctypes, not an extension module: it has no Python in it, so one
build serves every Python version, and where there is no compiler the package installs without it.
"""

import sys

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class BuildLibrary(build_ext):
    """Names the library without the Python version that a real extension module would carry."""

    def get_ext_filename(self, fullname: str) -> str:
        """``watchglass/stats/native/libsummaries.so``, whatever the interpreter."""
        return fullname.replace(".", "/") + ".so"


class PlatformWheel(bdist_wheel):
    """Tags the wheel for a platform but for no Python version."""

    def get_tag(self) -> tuple[str, str, str]:
        """``py3-none-<platform>``."""
        return "py3", "none", super().get_tag()[2]


KERNEL = "src/watchglass/stats/native"
# Never -ffast-math or -Ofast: linking with them makes the whole process flush subnormals. Said aloud, in case
# somebody's CFLAGS ask for them. What follows changes no result: no fused multiply-add, no errno, no traps.
COMPILE = [
    "-O3", "-std=c11", "-fno-fast-math", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-fno-strict-aliasing", "-pthread",
]  # fmt: skip
POSIX = sys.platform != "win32"

setup(
    ext_modules=[
        Extension(
            "watchglass.stats.native.libsummaries",
            sources=[f"{KERNEL}/summaries.c", f"{KERNEL}/pool.c"],
            depends=[f"{KERNEL}/{name}" for name in ("kernel.h", "block.h", "pool.h")],
            extra_compile_args=COMPILE,
            extra_link_args=["-fno-fast-math", "-pthread"],
            libraries=["m"],
            optional=True,
        )
    ]
    if POSIX  # threads are pthreads; elsewhere the package does without
    else [],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel} if POSIX else {},
)
