"""docs/performance.md is the one place that says what was not measured on a GPU; other pages link to it."""

from __future__ import annotations

from pathlib import Path


def test_one_place_says_what_was_not_measured_on_a_gpu(repository: Path) -> None:
    pages = [repository / "README.md", *(repository / "docs").glob("*.md"), repository / "benchmarks" / "README.md"]
    said = [page.name for page in pages for _ in range(page.read_text().lower().count("not measured on a gpu"))]
    assert said == ["performance.md"]
    linked = [page.name for page in pages if "performance.md#on-a-gpu" in page.read_text()]
    assert sorted(linked) == ["configuration.md", "dependencies.md", "first-bad-module.md"]
