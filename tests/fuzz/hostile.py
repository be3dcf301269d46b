"""Makes hostile files of sound ones, by changing their structure: lengths, counts, offsets and types."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from fuzz.choices import Choices

#: Texts that are known to harm some readers.
TEXTS = (
    "", "x", "../../outside", "/etc/passwd", "a/../../b", "C:\\x", "a\x00b", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07",
    "line\r\nbreak", "\u202egnp.exe", "\u2028", "\ud800", "</script><script>alert(1)</script>",
    "<img src=x onerror=a()>",
    "a" * 6000, "%s%n{0}{x!r}", "__proto__", "NaN", "-Infinity", "0x10", "fc1.weight", "loss", "worker_0", ".hidden",
    "::error file=x::y", "##[error]x", "x ##vso[task.complete]y",
    "@SUM(1)", "[red]markup[/]", "\U0001f525", "=cmd|' /C calc'!A0", "a" * 300 + "/" + "b" * 300,
)  # fmt: skip
#: Numbers at and beyond the edges of every type.
NUMBERS = (
    0, 1, -1, 2, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53, 2**53 + 1, 2**62, 2**63 - 1,
    2**63, 2**64 - 1, 2**64, -(2**31), -(2**63), -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, 1e-320, float("nan"),
    float("inf"), float("-inf"),
)  # fmt: skip
VALUES: tuple[Any, ...] = (*NUMBERS, *TEXTS, None, True, False, [], {}, [[]], [None], {"": None}, [1] * 100)
#: The same as integers of eight bytes, for binary files.
EDGES = (0, 1, 2, 7, 8, 255, 4096, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63,
         2**64 - 1, 2**64 - 2, 2**64 - 8)  # fmt: skip


def changed_bytes(data: bytes, choices: Choices) -> bytes:
    """``data`` cut, extended, or with some bytes or aligned integers replaced."""
    content = bytearray(data)
    for _ in range(1 + choices.number(4)):
        how = choices.number(7)
        at = choices.number(len(content) + 1)
        width = choices.one_of((1, 2, 4, 8))
        aligned = at // width * width
        if how == 0 and at < len(content):
            content[at] ^= 1 + choices.number(255)
        elif how in (1, 2) and aligned + width <= len(content):
            content[aligned : aligned + width] = (choices.one_of(EDGES) & (1 << 8 * width) - 1).to_bytes(
                width, "little"
            )
        elif how == 3 and aligned + width <= len(content):
            known = int.from_bytes(content[aligned : aligned + width], "little")
            moved = (known + choices.number(17) - 8) & (1 << 8 * width) - 1
            content[aligned : aligned + width] = moved.to_bytes(width, "little")
        elif how == 4:
            del content[at:]
        elif how == 5:
            content[at:at] = choices.content(32)
        elif how == 6:
            end = min(len(content), at + choices.number(64))
            content[at:at] = content[at:end]
    return bytes(content)


def changed_json(value: Any, choices: Choices) -> bytes:
    """JSON text of ``value`` with some nodes changed or keys repeated, or text that is not JSON."""
    value = json.loads(json.dumps(value))
    for _ in range(1 + choices.number(3)):
        value = _changed_node(value, choices)
    text = json.dumps(value, ensure_ascii=choices.rarely())
    if choices.rarely():
        # The last of two keys counts, for every reader alike.
        keys = [key for key in _keys(value) if len(key) < 100] or ["x"]
        again = json.dumps({choices.one_of(keys): choices.one_of(VALUES)})[1:-1]
        head, brace, tail = text.partition("{")
        text = head + brace + again + (", " if tail[:1] != "}" else "") + tail if brace else text
    if choices.rarely():
        deep = 10 ** choices.number(6)
        text = choices.one_of(("[" * deep, "[" * deep + "]" * deep, '{"a":' * deep, "9" * deep, text[: len(text) // 2]))
    encoded = text.encode(choices.one_of(("utf-8",) * 6 + ("utf-16", "utf-32")), errors="surrogatepass")
    return changed_bytes(encoded, choices) if choices.rarely() else encoded


def _changed_node(value: Any, choices: Choices) -> Any:
    """``value`` with one node in it replaced, removed or doubled."""
    if isinstance(value, dict) and value and choices.number(6):
        key = choices.one_of(sorted(value))
        how = choices.number(8)
        if how == 0:
            return {other: kept for other, kept in value.items() if other != key}
        if how == 1:
            return {**value, str(choices.one_of(TEXTS)): value[key]}
        return {**value, key: _changed_node(value[key], choices)}
    if isinstance(value, list) and value and choices.number(6):
        at = choices.number(len(value))
        how = choices.number(8)
        if how == 0:
            return value[:at] + value[at + 1 :]
        if how == 1:
            return value[:at] + [value[at]] * (1 + choices.number(5)) + value[at:]
        return [*value[:at], _changed_node(value[at], choices), *value[at + 1 :]]
    return choices.one_of(VALUES)


def _keys(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for item in value.values() for key in _keys(item))]
    return [key for item in value for key in _keys(item)] if isinstance(value, list) else []


class Part(NamedTuple):
    """One frame before it has its header: a hostile writer may fill it with anything."""

    kind: int
    schema: int
    payload: bytes


def frames_of(segment: bytes) -> list[Part]:
    """The frames of a sound segment."""
    found = []
    while segment:
        _, kind, schema, length, _ = struct.unpack_from("<4sHHII", segment)
        found.append(Part(kind, schema, segment[16 : 16 + length]))
        segment = segment[16 + length :]
    return found


def frame(part: Part, *, length: int | None = None, crc: int | None = None, magic: bytes = b"WGF1") -> bytes:
    """A frame with a correct checksum, unless one is given."""
    head = struct.pack("<HHI", part.kind, part.schema, (len(part.payload) if length is None else length) & 2**32 - 1)
    checksum = zlib.crc32(part.payload, zlib.crc32(head)) if crc is None else crc
    return magic + head + struct.pack("<I", checksum & 2**32 - 1) + part.payload


def changed_segment(segment: bytes, choices: Choices) -> bytes:
    """A segment of which some frames are hostile; checksums are right, for they protect from accidents only."""
    parts = frames_of(segment)
    made: list[bytes] = []
    chosen = {choices.number(len(parts)) for _ in range(1 + choices.number(3))} if parts else set()
    for number, part in enumerate(parts):
        if number not in chosen:
            made.append(frame(part))
            continue
        how = choices.number(12)
        if how == 0:
            made += [frame(part)] * 2
        elif how == 1:
            continue
        elif how == 2:
            made.append(frame(part, length=choices.one_of(EDGES)))
        elif how == 3:
            made.append(frame(part._replace(kind=choices.number(24))))
        elif how == 4:
            made.append(frame(part._replace(schema=choices.number(4))))
        elif how == 5:
            made.append(changed_bytes(frame(part), choices))
        else:
            made.append(frame(part._replace(payload=changed_payload(part, choices))))
    return b"".join(made)


def changed_payload(part: Part, choices: Choices) -> bytes:
    """A payload of the same kind, changed."""
    if part.payload[:1] in (b"{", b"["):
        return changed_json(json.loads(part.payload), choices)
    return changed_arrow(part.payload, choices) if part.kind == 4 else changed_bytes(part.payload, choices)


def changed_arrow(stream: bytes, choices: Choices) -> bytes:
    """An Arrow stream with some of its metadata changed: offsets, lengths, counts, types, sizes after decompression."""
    content = bytearray(stream)
    for _ in range(1 + choices.number(3)):
        places = _arrow_places(bytes(content))
        area = choices.number(4)
        if area == 3 or not places:
            return changed_bytes(bytes(content), choices)
        start, end = choices.one_of(places[:-1] or places) if area else choices.one_of(places)
        width = choices.one_of((8, 4, 2, 1))
        at = start + choices.number(max(1, (end - start) // width)) * width
        value = choices.one_of(EDGES) if choices.number(3) else int.from_bytes(content[at : at + width], "little") + 8
        content[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")
    return bytes(content)


def _arrow_places(stream: bytes) -> list[tuple[int, int]]:
    """Places of metadata in a stream, and of the lengths before compressed buffers."""
    places, at = [], 0
    while at + 8 <= len(stream):
        marker, size = struct.unpack_from("<II", stream, at)
        if marker != 0xFFFFFFFF or not size or at + 8 + size > len(stream):
            break
        places.append((at + 8, at + 8 + size))
        at += 8 + size
        following = stream.find(b"\xff\xff\xff\xff", at)
        if following < 0:
            break
        places += [(place, place + 8) for place in range(at, min(following, at + 64), 8)]
        at = following
    return places


def changed_safetensors(data: bytes, choices: Choices) -> bytes:
    """A safetensors file with a changed header, or a changed length of it."""
    size = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + size], data[8 + size :]
    how = choices.number(6)
    if how == 0:
        return changed_bytes(data, choices)
    made = changed_json(json.loads(header), choices)
    claimed = choices.one_of(EDGES) if how == 1 else len(made)
    return claimed.to_bytes(8, "little") + made + rest


def changed_file(path: str, data: bytes, choices: Choices) -> bytes:
    """A file of a run, changed according to its format."""
    how = choices.number(10)
    if how == 0:
        return changed_bytes(data, choices)
    if how == 1:
        return choices.content(200)
    changes: tuple[tuple[bool, Callable[[bytes, Choices], bytes]], ...] = (
        (data[:4] == b"WGF1", changed_segment),
        (path.endswith(".safetensors"), changed_safetensors),
        (data[:1] in (b"{", b"["), lambda content, rest: changed_json(json.loads(content), rest)),
    )
    change = next((change for fits, change in changes if fits), changed_bytes)
    try:
        return change(data, choices)
    except (ValueError, struct.error, RecursionError):  # an earlier change broke its format
        return changed_bytes(data, choices)


def ring_entry(choices: Choices) -> bytes:
    """One entry of a ring with a right checksum, whose content is hostile."""
    arrays = [["<u4", [2]], ["<f8", [2, 11]]]
    head = {
        "step": [7, 1, 7, 7, 10, 20], "scalars": [[0, 1.0, 0.5]],
        "statistics": [{"histograms": False, "origin": 0, "sampled": False}], "reductions": [[0, 1, 2.0]],
        "units": [], "phases": [], "pauses": [], "loads": [], "facts": False, "arrays": arrays,
    }  # fmt: skip
    text = changed_json(head, choices)
    how = choices.number(4)
    content = b"S" + len(text).to_bytes(4, "little") + text + bytes(8 + 2 * 88)
    if how == 0:
        content = changed_bytes(content, choices)
    elif how == 1:
        content = choices.one_of([b"R", b"C", b"S", b"?"]) + choices.content(120)
    numbers = struct.pack("<QI", choices.number(5), len(content))
    crc = zlib.crc32(content, zlib.crc32(numbers))
    return b"\x93WGentry" + numbers + struct.pack("<I", crc) + content
