"""Advice in the words of a run's framework: sentences of the knowledge have PyTorch's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from watchglass.config import read_toml

_FILE = Path(__file__).with_name("phrases.toml")


@cache
def phrases() -> Mapping[str, Mapping[str, str]]:
    """By phrase of PyTorch, what it is called in other frameworks, longest phrases first."""
    found: dict[str, dict[str, str]] = read_toml(_FILE, "file of phrases")
    return {phrase: found[phrase] for phrase in sorted(found, key=len, reverse=True)}


@cache
def _pattern() -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, phrases())))


def in_words_of(framework: str, sentence: str) -> str:
    """A sentence with a framework's names in place of PyTorch's; "" where it has no such thing.

    Args:
        framework: ``keras``, ``tensorflow`` or ``jax``; any other keeps the sentence.
        sentence: A sentence of the knowledge, its placeholders filled in or not.
    """
    if framework not in WORDED:
        return sentence
    known = phrases()
    if any(framework not in known[phrase] for phrase in _pattern().findall(sentence)):
        return ""
    return _pattern().sub(lambda found: known[found[0]][framework], sentence)


#: Frameworks whose words the phrases have.
WORDED = frozenset({"keras", "tensorflow", "jax"})
