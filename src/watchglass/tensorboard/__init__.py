"""Runs as event files of TensorBoard: written once, or by a process that follows a run while it is written."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.tensorboard.export import ExportedEvents as ExportedEvents, TensorBoardExport as TensorBoardExport

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
