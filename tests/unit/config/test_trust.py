"""A file that was found by searching runs nothing that others may have written; one that is named does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from watchglass.config import find_file, read_actions
from watchglass.errors import InvalidValueError

ACTIONS = '[[actions]]\nname = "Command"\nprogram = "touch"\n'
OTHER = 4242


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a configuration, and one below it in which somebody works."""
    folder = tmp_path / "project"
    (folder / "work").mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "watchglass.toml").write_text(ACTIONS)
    (folder / "watchglass.toml").chmod(0o644)
    return folder


def found_from(project: Path) -> Path:
    """The file that a search finds from the folder below."""
    found = find_file(folder=project / "work", environ={})
    assert found is not None
    return found


def test_of_this_user_it_is_taken(project: Path) -> None:
    assert found_from(project) == project / "watchglass.toml"
    assert [spec.name for spec in read_actions(found_from(project), named=False)] == ["Command"]


@pytest.mark.parametrize(
    ("place", "mode", "reason"),
    [
        ("watchglass.toml", 0o666, "is writable by all users"),
        (".", 0o777, "is writable by all users"),
        (".", 0o1777, ""),
        (".", 0o1755, ""),
        ("watchglass.toml", 0o1666, "is writable by all users"),
    ],
)
def test_what_everybody_may_write_is_refused(project: Path, place: str, mode: int, reason: str) -> None:
    (project / place).chmod(mode)
    if not reason:
        assert read_actions(found_from(project), named=False)
        return
    with pytest.raises(InvalidValueError, match=rf"{reason}; to trust it, name it with --config"):
        read_actions(found_from(project), named=False)
    assert read_actions(found_from(project), named=True), "named it is trusted"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to somebody else")
@pytest.mark.parametrize("place", ["watchglass.toml", "."])
def test_what_belongs_to_another_user_is_refused(project: Path, place: str) -> None:
    os.chown(project / place, OTHER, 0)
    with pytest.raises(InvalidValueError, match=f"belongs to user {OTHER}"):
        read_actions(found_from(project), named=False)
    assert read_actions(found_from(project), named=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another group")
@pytest.mark.parametrize(("group", "refused"), [(OTHER, True), (0, False)])
def test_a_group_with_others_in_it_counts(project: Path, group: int, refused: bool) -> None:
    os.chown(project / "watchglass.toml", 0, group)
    (project / "watchglass.toml").chmod(0o664)
    if refused:
        with pytest.raises(InvalidValueError, match="is writable by its group"):
            read_actions(found_from(project), named=False)
    else:
        assert read_actions(found_from(project), named=False)


def test_settings_alone_are_taken(project: Path) -> None:
    (project / "watchglass.toml").write_text("save_interval = 3\n")
    (project / "watchglass.toml").chmod(0o666)
    assert read_actions(found_from(project), named=False) == ()


def test_a_file_of_actions_that_others_may_write_is_refused(project: Path) -> None:
    mine = project / "work" / "mine.py"
    mine.write_text("")
    mine.chmod(0o666)
    (project / "watchglass.toml").write_text(ACTIONS.replace("Command", "work/mine.py:Mine"))
    with pytest.raises(InvalidValueError, match=r"mine.py is writable by all users"):
        read_actions(found_from(project), named=False)


def test_a_link_is_as_good_as_what_it_leads_to(project: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    (project / "watchglass.toml").rename(elsewhere / "real.toml")
    (project / "watchglass.toml").symlink_to(elsewhere / "real.toml")
    with pytest.raises(InvalidValueError, match="elsewhere is writable by all users"):
        read_actions(found_from(project), named=False)
