"""Where the code of a run comes from: releases of loaded packages, and the commit that is checked out.

Nothing is imported or executed for it, git neither: both are read from what is there.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from watchglass.config import read_regular

#: Packages that decide most of what a training run computes.
_DECISIVE = (
    "torch", "numpy", "lightning", "pytorch_lightning", "transformers", "accelerate", "deepspeed", "timm", "xgboost",
)  # fmt: skip
#: Most packages that are recorded.
_MOST = 200
#: Most bytes that are read of a small file of git, and of its list of references.
_SMALL, _LIST = 4096, 1 << 20


def versions(*, everything: bool) -> dict[str, str]:
    """Releases by name: of Python and of packages that are loaded, the decisive ones first.

    Args:
        everything: Whether to add all other packages that state a release.
    """
    found = {"python": platform.python_version()}
    others = sorted(name for name in tuple(sys.modules) if "." not in name and name not in sys.stdlib_module_names)
    for name in (*_DECISIVE, *(others if everything else ())):
        version = _content(sys.modules.get(name)).get("__version__")
        if isinstance(version, str) and len(found) < _MOST:
            found.setdefault(name, version[:80])
    return found


def _content(module: object) -> Mapping[str, Any]:
    """What a module has now: asked for an attribute, a lazy one is loaded, and others import what is missing."""
    try:
        found: Mapping[str, Any] = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return found


def script_folder() -> str:
    """The folder of the script; the working directory in a notebook, where ``sys.argv`` names the kernel's program."""
    named = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.dirname((sys.argv or [""])[0]) if named else os.getcwd()


def checked_out(folder: str | os.PathLike[str]) -> dict[str, str]:
    """The ``commit`` of the repository around a folder, and its ``branch`` if one is checked out; {} if unknown."""
    try:
        path = Path(folder).resolve()
        git = next((each / ".git" for each in (path, *path.parents) if (each / ".git").exists()), None)
        return {} if git is None else _head(_git_folder(git))
    except (OSError, ValueError):  # no permission, no text, or files of another form
        return {}


def _git_folder(git: Path) -> Path:
    """The folder of a repository; of a further worktree and of a submodule, a file names it."""
    if git.is_dir():
        return git
    return git.parent / _text(git).removeprefix("gitdir:").strip()


def _head(git: Path) -> dict[str, str]:
    head = _text(git / "HEAD")
    name = head.removeprefix("ref:").strip()
    if name == head:
        return _commit(head)
    common = git / _text(git / "commondir") if (git / "commondir").exists() else git
    branch = {"branch": name.removeprefix("refs/heads/")}
    for place in (git, common):
        if (place / name).is_file():
            return _commit(_text(place / name)) | branch
    packed = _text(common / "packed-refs", _LIST) if (common / "packed-refs").exists() else ""
    found = [line.split()[0] for line in packed.splitlines() if line.endswith(f" {name}")]
    return _commit(found[0]) | branch if found else {}


def _commit(text: str) -> dict[str, str]:
    """A name of a commit, in SHA-1 or SHA-256.

    Raises:
        ValueError: It is none.
    """
    int(text, 16)
    if len(text) not in (40, 64):
        raise ValueError(f"{text!r} is no commit")
    return {"commit": text}


def _text(path: Path, most: int = _SMALL) -> str:
    return read_regular(path, most).decode().strip()
