"""The commit and branch of a run are those that git names; watchglass reads git's files and does not run it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from watchglass.capture.process.provenance import checked_out


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "scripts").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "feature/x")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def test_the_commit_and_branch_are_those_that_git_names(repository: Path) -> None:
    expected = {"commit": git(repository, "rev-parse", "HEAD"), "branch": "feature/x"}
    assert checked_out(repository / "scripts") == expected
    git(repository, "pack-refs", "--all")
    assert not (repository / ".git" / "refs" / "heads" / "feature" / "x").exists()
    assert checked_out(repository) == expected


def test_a_further_worktree_and_a_commit_without_a_branch(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    assert checked_out(tmp_path / "other") == {"commit": commit, "branch": "other"}
    git(repository, "checkout", "-q", "--detach")
    assert checked_out(repository) == {"commit": commit}
