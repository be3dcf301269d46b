"""What people look at: figures, the report, the verdict. Plotly and rich are imported when something is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily
from watchglass.records import count
from watchglass.view.capture import capture_lines
from watchglass.view.failure import failure_sentence
from watchglass.view.text import duration, harmless_json, number, printable, size
from watchglass.view.verdict import STYLES, Row, headline, rows_panel, rows_text, tone, verdict_panel, verdict_text

if TYPE_CHECKING:
    from watchglass.view.conclusion import FAIL_ON, Terms, counted, enough, failed_rules, not_answered, outcome
    from watchglass.view.explanation import explain_findings, explain_verdict, explanation_json
    from watchglass.view.export import check_export_path, export_parquet
    from watchglass.view.json_format import json_document, json_schema
    from watchglass.view.junit import junit_document
    from watchglass.view.markdown import markdown_document
    from watchglass.view.output_file import check_output_path, write_whole
    from watchglass.view.report import check_report_path, render_report, write_report
    from watchglass.view.sarif import RuleText, sarif_document

__all__ = [
    "FAIL_ON",
    "STYLES",
    "Row",
    "RuleText",
    "Terms",
    "capture_lines",
    "check_export_path",
    "check_output_path",
    "check_report_path",
    "count",
    "counted",
    "duration",
    "enough",
    "explain_findings",
    "explain_verdict",
    "explanation_json",
    "export_parquet",
    "failed_rules",
    "failure_sentence",
    "harmless_json",
    "headline",
    "json_document",
    "json_schema",
    "junit_document",
    "markdown_document",
    "not_answered",
    "number",
    "outcome",
    "printable",
    "render_report",
    "rows_panel",
    "rows_text",
    "sarif_document",
    "size",
    "tone",
    "verdict_panel",
    "verdict_text",
    "write_report",
    "write_whole",
]  # fmt: skip

#: Names that need NumPy and later plotly, so that a launcher which only prints an error does not wait for them.
_HOMES = {
    "conclusion": ("FAIL_ON", "Terms", "counted", "enough", "failed_rules", "not_answered", "outcome"),
    "explanation": ("explain_findings", "explain_verdict", "explanation_json"),
    "export": ("check_export_path", "export_parquet"),
    "json_format": ("json_document", "json_schema"),
    "junit": ("junit_document",),
    "markdown": ("markdown_document",),
    "output_file": ("check_output_path", "write_whole"),
    "report": ("check_report_path", "render_report", "write_report"),
    "sarif": ("RuleText", "sarif_document"),
}  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
