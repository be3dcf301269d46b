"""Frames say what is whole."""

import pytest

from watchglass.errors import InvalidValueError
from watchglass.store import FrameKind, encode_frame, scan
from watchglass.store.encoding.frames import MAX_PAYLOAD, frame_length

ONE = encode_frame(FrameKind.FACTS, b"one")
TWO = encode_frame(FrameKind.SCALARS, b"twotwo", schema=7)


def test_frames_come_back_with_kind_schema_and_offset():
    result = scan(ONE + TWO, base=100, source="x")
    assert [(f.kind, f.schema, f.payload, f.offset, f.source) for f in result.frames] == [
        (FrameKind.FACTS, 1, b"one", 100, "x"),
        (FrameKind.SCALARS, 7, b"twotwo", 100 + len(ONE), "x"),
    ]
    assert (result.consumed, result.problem) == (len(ONE + TWO), None)


@pytest.mark.parametrize("cut", range(1, len(TWO)))
def test_a_torn_frame_is_incomplete_and_costs_nothing_before_it(cut):
    result = scan(ONE + TWO[:cut])
    assert [f.payload for f in result.frames] == [b"one"]
    assert (result.consumed, result.problem) == (len(ONE), "incomplete")


@pytest.mark.parametrize("at", [0, 3, 4, 6, 12, 15, 16, 18])
def test_a_flipped_bit_is_found(at):
    data = bytearray(ONE + TWO)
    data[at] ^= 0x20
    result = scan(bytes(data))
    assert result.frames == []
    assert result.problem == "damaged"


def test_a_header_that_claims_terabytes_is_damaged_not_waited_for():
    data = bytearray(ONE)
    data[8:12] = b"\xff\xff\xff\xff"
    assert scan(bytes(data)).problem == "damaged"
    assert frame_length(bytes(data)) is None


def test_unknown_kinds_pass():
    data = bytearray(encode_frame(FrameKind.FACTS, b""))
    assert scan(bytes(data)).frames[0].payload == b""


def test_a_payload_beyond_the_bound_is_refused():
    with pytest.raises(InvalidValueError, match="several frames"):
        encode_frame(FrameKind.RAW, bytes(MAX_PAYLOAD + 1))
