"""Numbers, durations and foreign strings as text for people."""

from __future__ import annotations

import html
import math
import re
import shlex

from watchglass.records import in_percent

#: ``"83 %"`` for 0.83; only certainty is 100 %, and only zero is 0 %.
percent = in_percent
#: Text that CI runners execute in the output of a job: GitHub a line that begins with "::", GitHub and Azure
#: "##[" and "##vso[" anywhere, TeamCity "##teamcity[". A terminal may break a long word, also before a "::".
_COMMAND = re.compile(r"#(?=#+\s*\w*\[)|:(?=:)(?:(?<!\w:)|(?<=\S{32}:))")


def printable(text: str) -> str:
    """``text`` in one line, without anything that controls a terminal or a CI runner.

    Names come from scripts of users, and from runs of other people.
    """
    line = _COMMAND.sub(lambda found: f"\\x{ord(found[0]):02x}", " ".join(text.split()))
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)


def escaped(foreign: str) -> str:
    """Text as HTML, or SVG, that shows it in one line, without any effect on the text around it."""
    return html.escape(printable(foreign))


def command(*words: str) -> str:
    """A command of watchglass for a shell: ``command("check", "runs/a b")`` is ``"watchglass check 'runs/a b'"``."""
    return " ".join(map(quoted, ("watchglass", *words)))


def quoted(word: str) -> str:
    """A word of a command for a shell."""
    return shlex.quote(printable(word))


def harmless_json(document: str) -> str:
    """An equal JSON document in which no CI runner finds a command."""
    return document.replace("##", "#\\u0023")


def harmless_xml(document: str) -> str:
    """The same for the text of an XML document."""
    return document.replace("##", "#&#35;")


def duration(seconds: float) -> str:
    """``"0.26 ms"``, ``"12 ms"``, ``"0.4 s"``, ``"25 s"``, ``"4 min 10 s"``, ``"3 h 20 min"``."""
    if not math.isfinite(seconds) or seconds < 0:
        return "unknown time"
    if 0 < seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.00095 else f"{1000 * seconds:.2g} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def exact_duration(seconds: float) -> str:
    """``"136 ms"``, ``"1.27 s"``, ``"25 s"``: three digits below 10 s, for durations that people compare."""
    if not math.isfinite(seconds) or seconds < 0 or seconds >= 9.995:
        return duration(seconds)
    return f"{1000 * seconds:,.3g} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def number(value: float | None) -> str:
    """Four significant digits, ``"NaN"``, ``"inf"``, ``"-inf"``, or "" for None."""
    if value is None:
        return ""
    if math.isnan(value):
        return "NaN"
    return f"{value:.4g}"


def money(amount: float) -> str:
    """``"39.20"``, ``"1,204.00"``; two significant digits below a hundredth."""
    return f"{amount:,.2f}" if amount == 0 or amount >= 0.01 else f"{amount:.2g}"


def size(amount: float) -> str:
    """``"4.8 MB"``, with decimal prefixes."""
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def quantity(value: float, unit: str) -> str:
    """``"43.22 %"``, ``"11,210 1/s"``, ``"3.5 MB/s"``: a number with its unit, bytes with a decimal prefix."""
    if unit.startswith("bytes"):
        return size(value) + unit.removeprefix("bytes")
    # Counts and rates are easier to read in full than with an exponent.
    words = f"{value:,.0f}" if 1e3 <= abs(value) < 1e15 else number(value)
    return f"{words} {unit}".rstrip()
