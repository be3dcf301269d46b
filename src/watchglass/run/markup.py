"""Small pieces of HTML for notebooks. Names come from users' scripts and foreign files: everything is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

#: Colours are those of the notebook, light or dark. Only lines have a colour, a transparent grey.
_STYLE = """
.watchglass{font-size:13px;line-height:1.45}
.watchglass b{font-weight:600}
.watchglass small{opacity:.7;font-size:12px}
.watchglass div{overflow-x:auto}
.watchglass table{border-collapse:collapse;margin:.4em 0;border:0;font-size:inherit;color:inherit}
.watchglass th,.watchglass td{padding:2px 14px 2px 0;text-align:left;border:0;background:none;vertical-align:top;
white-space:nowrap}
.watchglass td.long{white-space:normal;min-width:24em;overflow-wrap:anywhere}
.watchglass thead th{border-bottom:1px solid rgba(128,128,128,.5);font-weight:600}
.watchglass tbody tr+tr td{border-top:1px solid rgba(128,128,128,.18)}
.watchglass td.number,.watchglass th.number{text-align:right;font-variant-numeric:tabular-nums}
"""
#: Longest text in a cell, and the longest that stays in one line.
_LONGEST, _WIDE = 300, 60


def page(
    title: str, note: str, header: Sequence[str] = (), rows: Iterable[Sequence[object]] = (), more: str = ""
) -> str:
    """A title with a note and a table, as HTML.

    Args:
        title: In bold.
        note: After the title, in small letters.
        header: Names of columns; () for no table.
        rows: Cells. Numbers are aligned to the right, None is an empty cell.
        more: Below the table, small; "" for nothing.
    """
    body = [list(row) for row in rows]
    parts = [f"<style>{_STYLE}</style><div class='watchglass'><b>{_text(title)}</b> <small>{_text(note)}</small>"]
    if header and body:
        numbers = [all(_is_number(row[i]) for row in body if row[i] is not None) for i in range(len(header))]
        cells = "".join(_cell("th", name, number) for name, number in zip(header, numbers, strict=True))
        parts.append(f"<div><table><thead><tr>{cells}</tr></thead><tbody>")
        for row in body:
            cells = "".join(_cell("td", value, number) for value, number in zip(row, numbers, strict=True))
            parts.append(f"<tr>{cells}</tr>")
        parts.append("</tbody></table></div>")
    if more:
        parts.append(f"<small>{_text(more)}</small>")
    return "".join(parts) + "</div>"


def _cell(tag: str, value: object, number: bool) -> str:
    text = _text(value)
    kind = " class=number" if number else " class=long" if tag == "td" and len(text) > _WIDE else ""
    return f"<{tag}{kind}>{text}</{tag}>"


def _text(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:.5g}".replace("nan", "NaN") if isinstance(value, float) else f"{value}"
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return escape(line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
