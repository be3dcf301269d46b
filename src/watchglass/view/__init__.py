"""What people look at: figures, the report, the verdict. Plotly and rich are imported when something is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from watchglass.view.capture import capture_lines
from watchglass.view.text import count, duration, number, printable, size
from watchglass.view.verdict import verdict_panel, verdict_text

if TYPE_CHECKING:
    from watchglass.view.export import Exported, check_export_path, export_parquet
    from watchglass.view.figures import (
        accuracy_figure,
        gradient_heatmap,
        loss_figure,
        run_figures,
        update_ratio_figure,
    )
    from watchglass.view.report import check_report_path, render_report, write_report

__all__ = [
    "Exported", "accuracy_figure", "capture_lines", "check_export_path", "check_report_path", "count", "duration",
    "export_parquet", "gradient_heatmap", "loss_figure", "number", "printable", "render_report", "run_figures",
    "size", "update_ratio_figure", "verdict_panel", "verdict_text", "write_report",
]  # fmt: skip

#: Names that need NumPy and later plotly, so that a launcher which only prints an error does not wait for them.
_LAZY = {
    **dict.fromkeys(("Exported", "check_export_path", "export_parquet"), "watchglass.view.export"),
    **dict.fromkeys(("check_report_path", "render_report", "write_report"), "watchglass.view.report"),
    **dict.fromkeys(
        ("accuracy_figure", "gradient_heatmap", "loss_figure", "run_figures", "update_ratio_figure"),
        "watchglass.view.figures",
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
