"""Whether other users could have written a file that was found by searching and names programs to run."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def untrusted(path: Path) -> str:
    """The reason why another user may have written a file; "" if only this user or root can have.

    File and folder must belong to this user or to root, and no other user may be able to write to them. A folder with
    the sticky bit is accepted, and so is a group that only this user belongs to. For a link, the target counts too.
    """
    if not hasattr(os, "getuid"):  # Windows: no numeric owners
        return ""
    real = path.resolve()
    for place in dict.fromkeys([path, path.parent, real, real.parent]):
        try:
            found = os.stat(place)
        except OSError as error:
            return f"{place} cannot be checked: {error.strerror}"
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
        return "is writable by all users"
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid):
        return "is writable by its group"
    return ""


def _is_private(group: int) -> bool:
    """Whether a group is that of root, or has this user as its only member."""
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
