"""The interpreter's flags and PYTHONPATH, passed on as they were."""

from __future__ import annotations

import os
from collections import namedtuple

import pytest

from watchglass.errors import LaunchError
from watchglass.launch.interpreter import (
    check_bootstrap_possible,
    interpreter_flags,
    with_bootstrap,
    without_bootstrap,
)


@pytest.mark.parametrize(
    ("argv", "flags"),
    [
        (["python"], []),
        (["python", "-m", "watchglass", "run", "-u"], []),
        (["python", "/bin/watchglass", "run", "-O"], []),
        (["python", "-u", "-OO", "-m", "watchglass"], ["-u", "-OO"]),
        (["python", "-um", "watchglass"], ["-u"]),
        (["python", "-uBc", "import watchglass"], ["-uB"]),
        (["python", "-X", "dev", "-W", "error", "script.py", "-u"], ["-X", "dev", "-W", "error"]),
        (["python", "-Xdev", "-Werror::UserWarning:mod", "x"], ["-Xdev", "-Werror::UserWarning:mod"]),
        (["python", "-bX", "importtime", "-m", "watchglass"], ["-bX", "importtime"]),
        (["python", "-WXm", "-m", "watchglass"], ["-WXm"]),
        (["python", "--check-hash-based-pycs", "never", "-m", "w"], ["--check-hash-based-pycs", "never"]),
        (["python", "-", "x"], []),
    ],
)
def test_flags_end_where_the_program_begins(argv: list[str], flags: list[str]) -> None:
    assert interpreter_flags(argv) == flags


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "/b"), ("", "/b"), ("lib", "/b:lib"), ("lib:", "/b:lib:"), ("/b:lib", "/b:lib"), ("/b", "/b")],
)
def test_bootstrap_comes_first_and_once_and_adds_no_empty_entry(before: str | None, after: str) -> None:
    before = before.replace(":", os.pathsep) if before else before
    assert with_bootstrap(before, "/b") == after.replace(":", os.pathsep)


def test_bootstrap_is_taken_out_again() -> None:
    assert without_bootstrap(os.pathsep.join(["/b", "lib", ""]), "/b") == os.pathsep.join(["lib", ""])
    assert without_bootstrap("/b", "/b") == ""
    assert without_bootstrap(None, "/b") == ""


@pytest.mark.parametrize(("flag", "letter"), [("isolated", "I"), ("ignore_environment", "E"), ("no_site", "S")])
def test_flags_that_keep_capture_out_are_refused(flag: str, letter: str) -> None:
    names = ["isolated", "ignore_environment", "no_site"]
    flags = namedtuple("flags", names)(*(int(name == flag) for name in names))
    with pytest.raises(LaunchError, match=f"python -{letter} disables capture; .* use --no-capture"):
        check_bootstrap_possible(flags)
