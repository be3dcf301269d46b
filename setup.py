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
        """``watchglass/stats/native/librows.so``, whatever the interpreter."""
        return fullname.replace(".", "/") + ".so"


class PlatformWheel(bdist_wheel):
    """Tags the wheel for a platform but for no Python version."""

    def get_tag(self) -> tuple[str, str, str]:
        """``py3-none-<platform>``."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "watchglass.stats.native.librows",
            sources=["src/watchglass/stats/native/rows.c"],
            # Never -ffast-math or -Ofast: linking with them makes the whole process flush subnormals.
            extra_compile_args=[] if sys.platform == "win32" else ["-O3", "-std=c11", "-fno-fast-math"],
            libraries=[] if sys.platform == "win32" else ["m"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)
