"""A hook says what it watches and whether it still does."""

from __future__ import annotations

from pathlib import Path

from watchglass import Hook


def test_a_hook_is_readable(tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    with Hook(path) as hook:
        assert repr(hook) == f"Hook(run={path!r}, watching, 0 training steps)"
        with hook.step("train"):
            hook.save_scalar("loss", 1.0)
        assert repr(hook) == f"Hook(run={path!r}, watching, 1 training step)"
    assert repr(hook) == f"Hook(run={path!r}, closed, 1 training step)"
