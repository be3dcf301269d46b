"""What a launcher imports: it has nothing to do with numbers, and every run waits for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"numpy", "pyarrow", "rich", "psutil", "plotly", "watchglass.evaluate.live", "watchglass.run.run"}

LAUNCH = """
import json, sys
from watchglass.cli import main
before = set(sys.modules)
status = main(["run", "--run", "run", "script.py"])
print(json.dumps([status, sorted(before), sorted(sys.modules)]))
"""


def test_a_launcher_imports_nothing_that_is_slow_to_import(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('trained')")
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=True
    )
    said, report = done.stdout.splitlines()
    assert said == "trained"
    status, before, after = json.loads(report)
    assert status == 0
    assert not HEAVY & set(before)
    assert not HEAVY & set(after), "not for the verdict either"
    assert "verdict on run" in done.stderr


def test_asking_for_one_verb_imports_no_other() -> None:
    command = (
        "import sys; from watchglass.cli import main; main(['run', '--help']); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=180, check=True)
    assert "Usage" in done.stdout
    assert "watchglass.cli.run" in done.stderr.split()
    assert "watchglass.cli.backtest" not in done.stderr.split()


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        ("import watchglass", ("watchglass.records", "watchglass.config", "json", "dataclasses")),
        ("import watchglass; watchglass.watch", ("watchglass.store.compaction", "watchglass.store.parquet", "pyarrow")),
        (
            "from watchglass.cli import main; main(['--help'])",
            (
                "numpy", "pyarrow", "psutil", "plotly", "tensorboard", "wandb", "mcp", "textual", "watchglass.capture",
                "watchglass.evaluate.engine",
            ),
        ),
        (
            "import watchglass.profile.process",
            (
                "pyarrow", "importlib.metadata", "watchglass.supervise.supervision", "watchglass.control.agreement",
                "watchglass.records.verdict",
            ),
        ),
        ("import watchglass.launch", ("watchglass.records.rows", "watchglass.records.operators")),
    ],
)  # fmt: skip
def test_a_start_imports_only_what_it_needs(command: str, heavy: tuple[str, ...]) -> None:
    command = f"import sys; before = set(sys.modules); {command}; print(*set(sys.modules) - before, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=180, check=True)
    assert not set(heavy) & set(done.stderr.split())


def test_rules_are_imported_without_reading_causes() -> None:
    code = "import watchglass.rules, sys; print('tomllib' in sys.modules or 'tomli' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("package", ["evaluate.live", "profile"])
def test_processes_beside_a_run_collect_garbage_but_do_not_visit_their_modules(package: str) -> None:
    code = (
        f"import gc, runpy; from watchglass.{package} import process; "
        "process.main = lambda arguments: print(gc.isenabled(), gc.get_freeze_count() > 10_000) or 0; "
        f"runpy.run_module('watchglass.{package.partition('.')[0]}', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
