"""What ``watchglass export --to tensorboard`` says; tests/unit/tensorboard has what it writes."""

from __future__ import annotations

from pathlib import Path

from command_line import Watchglass


def test_the_command_says_what_it_wrote_and_how_to_look_at_it(
    watchglass: Watchglass, healthy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "a b"
    said = watchglass("export", healthy, "--to", "tensorboard", "-o", out)
    first, second = said.out.splitlines()
    assert first.startswith(f"{out}/{healthy.name}: ")
    assert first.endswith(" histograms")
    assert second == f"to look at it: tensorboard --logdir '{out}'"
    assert watchglass("export", healthy, "--to", "tensorboard", "-o", out).out.startswith(
        f"{out}/{healthy.name}: 0 steps, 0 scalars, 0 histograms"
    )


def test_what_is_not_for_wandb_is_refused(watchglass: Watchglass, healthy: Path, tmp_path: Path) -> None:
    error = watchglass("export", healthy, "--to", "wandb", "--histograms", "-o", tmp_path / "wb").error
    assert error == "--histograms is for --to parquet and --to tensorboard; wandb never gets histograms"


def test_event_files_without_histograms_can_be_asked_for(watchglass: Watchglass, healthy: Path, tmp_path: Path) -> None:
    said = watchglass("export", healthy, "--to", "tensorboard", "--no-histograms", "-o", tmp_path / "tb").out
    assert ", 0 histograms\n" in said
