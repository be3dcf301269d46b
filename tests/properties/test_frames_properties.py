"""Whatever happens to the bytes, a scan gives a prefix of the frames that were written."""

from hypothesis import given, strategies as st

from watchglass.store import FrameKind, encode_frame, scan

FRAMES = st.lists(st.tuples(st.sampled_from(list(FrameKind)), st.binary(max_size=64)), max_size=6)


def encoded(frames):
    return b"".join(encode_frame(kind, payload) for kind, payload in frames)


def found(data):
    result = scan(data)
    assert 0 <= result.consumed <= len(data)
    assert (result.problem is None) == (result.consumed == len(data))
    return [(frame.kind, frame.payload) for frame in result.frames]


@given(FRAMES, st.data())
def test_a_torn_end_costs_at_most_the_frames_it_touches(frames, data):
    whole = encoded(frames)
    cut = data.draw(st.integers(0, len(whole)))
    result = found(whole[:cut])
    assert result == frames[: len(result)]
    assert len(encoded(frames[: len(result)])) <= cut
    assert cut == len(whole) or len(encoded(frames[: len(result) + 1])) > cut


@given(FRAMES.filter(bool), st.data())
def test_a_changed_byte_ends_the_prefix_before_it(frames, data):
    whole = bytearray(encoded(frames))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    result = found(bytes(whole))
    assert result == frames[: len(result)]
    assert len(encoded(frames[: len(result)])) <= at


@given(st.binary(max_size=200))
def test_foreign_bytes_are_no_frames(data):
    assert found(data) == [] or data.startswith(b"WGF1")


@given(FRAMES, st.integers(0, 400))
def test_reading_in_two_pieces_gives_the_same(frames, at):
    whole = encoded(frames)
    first = scan(whole[:at])
    second = scan(whole, first.consumed)
    assert [(f.kind, f.payload) for f in first.frames + second.frames] == frames
