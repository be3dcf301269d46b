"""What people look at: figures, the report, the verdict. Plotly and rich are imported when something is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from watchglass.view.capture import capture_lines
from watchglass.view.text import count, duration, number, printable, size
from watchglass.view.verdict import STYLES, Row, headline, rows_panel, rows_text, tone, verdict_panel, verdict_text

if TYPE_CHECKING:
    from watchglass.view.conclusion import FAIL_ON, Terms, counted, enough, failed_rules, not_answered, outcome
    from watchglass.view.explanation import explain_findings, explain_verdict, explanation_json
    from watchglass.view.export import Exported, check_export_path, export_parquet
    from watchglass.view.figures import (
        accuracy_figure,
        gradient_heatmap,
        loss_figure,
        run_figures,
        update_ratio_figure,
    )
    from watchglass.view.json_format import json_document, json_schema
    from watchglass.view.junit import junit_document
    from watchglass.view.markdown import markdown_document
    from watchglass.view.output_file import check_output_path, write_whole
    from watchglass.view.report import check_report_path, render_report, write_report
    from watchglass.view.sarif import RuleText, sarif_document

__all__ = [
    "FAIL_ON", "STYLES", "Exported", "Row", "RuleText", "Terms", "accuracy_figure", "capture_lines",
    "check_export_path", "check_output_path", "check_report_path", "count", "counted", "duration", "enough",
    "explain_findings", "explain_verdict", "explanation_json", "export_parquet", "failed_rules", "gradient_heatmap",
    "headline", "json_document", "json_schema", "junit_document", "loss_figure", "markdown_document", "not_answered",
    "number", "outcome", "printable", "render_report", "rows_panel", "rows_text", "run_figures", "sarif_document",
    "size", "tone", "update_ratio_figure", "verdict_panel", "verdict_text", "write_report", "write_whole",
]  # fmt: skip

#: Names that need NumPy and later plotly, so that a launcher which only prints an error does not wait for them.
_LAZY = {
    **dict.fromkeys(
        ("FAIL_ON", "Terms", "counted", "enough", "failed_rules", "not_answered", "outcome"),
        "watchglass.view.conclusion",
    ),
    **dict.fromkeys(("json_document", "json_schema"), "watchglass.view.json_format"),
    **dict.fromkeys(("explain_findings", "explain_verdict", "explanation_json"), "watchglass.view.explanation"),
    "junit_document": "watchglass.view.junit",
    "markdown_document": "watchglass.view.markdown",
    **dict.fromkeys(("check_output_path", "write_whole"), "watchglass.view.output_file"),
    **dict.fromkeys(("RuleText", "sarif_document"), "watchglass.view.sarif"),
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
