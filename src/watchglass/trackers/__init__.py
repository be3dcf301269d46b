"""Runs in the formats of experiment trackers: TensorBoard, also while a run is written, and Weights & Biases."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.trackers.offline_wandb import export_wandb as export_wandb
    from watchglass.trackers.tensorboard_export import (
        ExportedRun as ExportedRun,
        TensorBoardExport as TensorBoardExport,
    )

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
