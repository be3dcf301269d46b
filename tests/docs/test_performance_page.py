"""docs/performance.md is the one place that says what was not measured on a GPU; no page says anything twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

#: A shorter paragraph may come again: a row of a table's head, a word before a list.
_SENTENCES = 120


def test_one_place_says_what_was_not_measured_on_a_gpu(repository: Path) -> None:
    pages = [repository / "README.md", *(repository / "docs").glob("*.md"), repository / "benchmarks" / "README.md"]
    said = [page.name for page in pages for _ in range(page.read_text().lower().count("not measured on a gpu"))]
    assert said == ["performance.md"]
    linked = [page.name for page in pages if "performance.md#on-a-gpu" in page.read_text()]
    assert sorted(linked) == ["configuration.md", "dependencies.md", "first-bad-module.md"]


def test_no_page_has_a_paragraph_twice(repository: Path) -> None:
    pages = [repository / "README.md", repository / "CHANGELOG.md", *repository.glob("docs/**/*.md")]
    twice = {}
    for page in pages:
        paragraphs = Counter(text.strip() for text in page.read_text().split("\n\n"))
        found = [
            text[:60]
            for text, times in paragraphs.items()
            if times > 1 and len(text) > _SENTENCES and not text.startswith("```")
        ]
        if found:
            twice[page.name] = found
    assert twice == {}
