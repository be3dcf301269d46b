"""Whether others could have written a file that was found by searching and names what is to be run."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def untrusted(path: Path) -> str:
    """Why a file, or a folder that it lies in, may be of somebody else, in words; "" where it is of this user or root.

    Both have to belong to this user or to root, and nobody else may write them: a folder with the sticky bit everybody
    may, and the group of this user alone is this user. Of a link, what it leads to counts as well.
    """
    if not hasattr(os, "getuid"):  # Windows: owners are no numbers there
        return ""
    real = path.resolve()
    for place in dict.fromkeys([path, path.parent, real, real.parent]):
        try:
            found = os.stat(place)
        except OSError as error:
            return f"{place} cannot be looked at: {error.strerror}"
        reason = _reason(found)
        if reason:
            return f"{place} {reason}"
    return ""


def _reason(found: os.stat_result) -> str:
    if found.st_uid not in (0, os.getuid()):
        return f"belongs to {_name_of(found.st_uid)}"
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        return ""
    if found.st_mode & stat.S_IWOTH:
        return "may be written by everybody"
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid):
        return "may be written by its group"
    return ""


def _is_private(group: int) -> bool:
    """Whether a group is root's, or has this user as its one member."""
    if group == 0:
        return True
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except (KeyError, OSError):
        return False
    return user.pw_gid == group and user.pw_name == found.gr_name and set(found.gr_mem) <= {user.pw_name}


def _name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return f"user {uid}"
