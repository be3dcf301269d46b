"""docs/python.md, run from top to bottom."""

from __future__ import annotations

import re
import runpy
from pathlib import Path


def test_every_example_of_the_page_runs(repository: Path, in_tmp_path: Path) -> None:
    page = (repository / "docs" / "python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 4
    (in_tmp_path / "page.py").write_text("\n".join(blocks))
    runpy.run_path("page.py")
    assert (in_tmp_path / "runs" / "mine" / "run.json").exists()
