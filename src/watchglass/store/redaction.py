"""Replaces what looks like a secret: command lines go into run.json, which people copy and share."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Replaces a secret.
REDACTED = "[redacted]"

#: Names of options, variables and parameters, as words joined by "_".
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:pwd|pass|passphrase|token|auth|authorization|bearer|cookie|credentials?|sig|signature|sas|jwt|pat"
    r"|(?:api|access|account|private|encryption|signing|ssh|sas|shared|license|licence|activation|product|master|auth"
    r"|service|client|consumer|deploy|session|storage|subscription|wandb|comet|neptune)_?keys?|key_?id|webhook)(?:_|$)"
    r"|password|passwd|secret|api_?key|accesskey|(?:token|pwd)$|^keys?$"
)
_NUMBER = re.compile(r"[-+]?[\d.,:eE/-]*")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
#: Secrets with a known format.
_SECRET_VALUE = re.compile(
    r"(?<![\w-])(?:(?:sk|pk|rk)[-_][\w-]{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|hf_\w{16,}|npm_\w{30,}"
    r"|pypi-[\w-]{30,}|xox[a-z]-[\w-]{10,}|A[A-Z]{2}A[0-9A-Z]{16}|AIza[\w-]{30,}|ya29\.[\w-]{16,}|SG\.[\w-]{16,}\.[\w-]+"
    r"|dop_v1_\w{16,}|[0-9a-f]{40}(?![\w-])|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)",
    re.DOTALL,
)
#: Names and passwords before the host of an address; passwords may hold "@" and, unlike ports, "/".
_URL_CREDENTIALS = re.compile(
    r"\b([A-Za-z][\w+.-]{0,20}://)(?:[^/\s'\"]{1,2000}|[^/@\s:'\"]{0,200}:(?!\d+/)[^\s'\"]{1,500})@"
)
#: Addresses that need no further secret.
_WEBHOOK = re.compile(
    r"(://(?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks|[\w.]*webhook\.office\.com)/)[^\s'\"]+"
)
_SCHEME = re.compile(r"(?i)\b(bearer|basic)(\s+)[\w.~+/=-]{6,}")
#: ``name=value``, ``name: value``, ``"name": "value"``, as parameters of an address, in JSON, in code.
_ASSIGNMENT = re.compile(
    r"""(?<![\w.+/-])(?P<name>[\w.+/-]{1,200})(?P<mark>["']?\]?\s*(?:[:=]|%3[AaDd])\s*(?!//))"""
    r"""(?P<value>"[^"]*"|'[^']*'|\[redacted\]|[^\s&;,#"'}\])]+)"""
)
_OPTION = re.compile(r"""(?<!\S)(?P<mark>--?(?P<name>[\w.-]+)\s+)(?P<value>(?!--)\S+)""")


def redact(command: Sequence[str]) -> list[str]:
    """``command`` with what looks like a secret replaced by ``[redacted]``; everything else stays as it is.

    Values of options, variables, parameters of addresses and keys of JSON whose names say that they are secret; names
    and passwords in addresses; keys that are known by their look. It is better to hide a word too many: nothing is
    computed from it.
    """
    shown: list[str] = []
    hide_next = False
    for number, argument in enumerate(command):
        name, equals, value = argument.partition("=")
        if hide_next and not argument.startswith("--"):  # tokens may begin with one dash
            shown.append(REDACTED)
        elif equals and value and _is_plain_name(name) and is_secret_name(name):
            shown.append(f"{name}={REDACTED}")  # for any value
        else:
            shown.append(redacted(argument))
        hide_next = name.startswith("-") and not equals and _is_plain_name(name) and is_secret_name(name)
        following = command[number + 1] if number + 1 < len(command) else ""
        # A password, or a port: numbers reveal little and are kept.
        hide_next = hide_next or (argument == "-p" and not _NUMBER.fullmatch(following))
        hide_next = hide_next or (argument in ("-u", "--user") and ":" in following)
    return shown


def redacted(text: str) -> str:
    """A text, for instance a foreign error message, with what looks like a secret replaced."""
    text = _SECRET_VALUE.sub(REDACTED, text)
    text = _URL_CREDENTIALS.sub(rf"\1{REDACTED}@", text)
    text = _WEBHOOK.sub(rf"\1{REDACTED}", text)
    text = _SCHEME.sub(rf"\1\2{REDACTED}", text)
    text = _OPTION.sub(_without_value, text)
    return _ASSIGNMENT.sub(_without_value, text)


def is_secret_name(name: str) -> bool:
    """Whether a name is that of a secret: ``--api-key``, ``HF_TOKEN``, ``clientSecret``, ``X-Amz-Signature``."""
    return len(name) <= 200 and bool(_SECRET_NAME.search("_".join(_WORDS.findall(name)).lower()))


def _is_plain_name(name: str) -> bool:
    return len(name) <= 200 and not any(letter.isspace() or letter in "?&'\"{}" for letter in name)


def _without_value(found: re.Match[str]) -> str:
    if not is_secret_name(found["name"]):
        return found[0]
    quote = found["value"][0] if found["value"][0] in "\"'" else ""
    head = found[0][: found.start("value") - found.start()]
    return f"{head}{quote}{REDACTED}{quote}"
