"""docs/dependencies.md tells of every package that installing watchglass brings, and each is imported somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def runtime_dependencies() -> list[str]:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    return [re.match(r"[\w-]+", line)[0] for line in tomllib.loads(text)["project"]["dependencies"]]  # type: ignore[index]


@pytest.mark.parametrize("name", runtime_dependencies())
def test_what_is_installed_is_described_and_imported(repository: Path, name: str) -> None:
    assert f"\n| {name} | " in (repository / "docs" / "dependencies.md").read_text()
    pattern = re.compile(rf"^\s*(import|from) {name}\b", re.MULTILINE)
    sources = (repository / "src" / "watchglass").rglob("*.py")
    assert any(pattern.search(path.read_text()) for path in sources), f"nothing imports {name}"
