"""The frames that each message has, written and read without pamqp: byte for byte as it does."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st
from pamqp import body, commands, frame, header

from actgent.cluster.amqp.framing import FrameReader, encode_frames
from actgent.cluster.amqp.frequent import decode_frequent, decode_whole, encode_frequent

BASIC = commands.Basic
TEXT = st.none() | st.text(st.characters(codec="utf-8"), max_size=60)
NAMES = st.text("abcxyz019-_.:", max_size=60)
NUMBERS = st.integers(0, 2**63 - 1)
PROPERTIES = st.builds(
    BASIC.Properties,
    content_type=TEXT,
    content_encoding=TEXT,
    delivery_mode=st.sampled_from([None, 1, 2]),
    priority=st.none() | st.integers(0, 255),
    correlation_id=TEXT,
    reply_to=TEXT,
    expiration=TEXT,
    message_id=TEXT,
    message_type=TEXT,
    user_id=TEXT,
    app_id=TEXT,
)
FRAMES = st.one_of(
    st.builds(BASIC.Publish, exchange=NAMES, routing_key=NAMES, mandatory=st.booleans()),
    st.builds(
        BASIC.Deliver,
        consumer_tag=NAMES,
        delivery_tag=NUMBERS,
        redelivered=st.booleans(),
        exchange=NAMES,
        routing_key=NAMES,
    ),
    st.builds(BASIC.Ack, delivery_tag=NUMBERS, multiple=st.booleans()),
    st.builds(header.ContentHeader, body_size=NUMBERS, properties=PROPERTIES),
)


def fields_of(found):
    known = found.properties if isinstance(found, header.ContentHeader) else found
    return (
        type(found),
        getattr(found, "body_size", 0),
        {name: getattr(known, name) for name in known.__slots__},
    )


@given(FRAMES, st.integers(1, 65535))
def test_frames_are_the_same_bytes_and_values_as_pamqps(said, channel):
    """Written the same, and read the same."""
    data = frame.marshal(said, channel)
    assert encode_frames(channel, said) == data
    ((read_of, read),) = FrameReader().feed(data)
    assert read_of == channel
    assert fields_of(read) == fields_of(frame.unmarshal(data)[2])


@given(FRAMES, st.data())
def test_broken_frames_are_left_to_pamqp(said, data):
    """However they are cut: what is read of them is nothing, or as long as it says."""
    whole = frame.marshal(said, 1)
    cut = whole[: data.draw(st.integers(8, len(whole) - 1))]
    assert decode_frequent(whole[0], cut[:-1] + b"\xce") is None


@pytest.mark.parametrize(
    "properties", [{"headers": {"a": 1}}, {"timestamp": datetime(2026, 1, 1, tzinfo=UTC)}]
)
def test_what_is_rare_is_pamqps(properties):
    """Tables and dates are read and written by it, in the same frames."""
    said = header.ContentHeader(body_size=1, properties=BASIC.Properties(priority=1, **properties))
    data = encode_frames(1, said)
    assert encode_frequent(1, said) is None
    assert decode_frequent(2, data) is None
    assert fields_of(FrameReader().feed(data)[0][1]) == fields_of(frame.unmarshal(data)[2])


@pytest.mark.parametrize("properties", [{"priority": 256}, {"reply_to": "x" * 256}, {"expiration": 5}])
def test_what_amqp_cannot_carry_is_refused(properties):
    """As by pamqp: a number above 255, a text that is too long or none."""
    with pytest.raises(ValueError, match=r"."):
        encode_frames(1, header.ContentHeader(body_size=1, properties=BASIC.Properties(**properties)))


@pytest.mark.parametrize("properties", [{"priority": 1.0}, {"delivery_mode": 2.0}, {"priority": [1]}])
def test_what_was_written_of_an_equal_value_is_not_taken_for_it(properties):
    """What is the same in many messages is kept as bytes: a number that is no integer is refused all the same."""
    encode_frames(1, header.ContentHeader(body_size=1, properties=BASIC.Properties(priority=1)))
    encode_frames(1, header.ContentHeader(body_size=1, properties=BASIC.Properties(delivery_mode=2)))
    with pytest.raises(ValueError, match=r"."):
        encode_frames(1, header.ContentHeader(body_size=1, properties=BASIC.Properties(**properties)))


# --- messages that come whole ------------------------------------------------------------

DELIVERED = st.builds(
    lambda method, properties, data: [
        method,
        header.ContentHeader(body_size=len(data), properties=properties),
        *([body.ContentBody(data)] if data else []),
    ],
    st.builds(BASIC.Deliver, consumer_tag=NAMES, delivery_tag=NUMBERS, exchange=NAMES, routing_key=NAMES),
    PROPERTIES,
    st.binary(max_size=300),
)


def values_of(found):
    """A frame, or the frames of a message, as what they say."""
    if not isinstance(found, tuple):
        return [found.value if isinstance(found, body.ContentBody) else fields_of(found)]
    method, properties, data = found
    return [
        fields_of(method),
        fields_of(header.ContentHeader(body_size=len(data), properties=properties)),
        data,
    ]


@given(
    st.lists(st.tuples(st.integers(1, 9), DELIVERED | FRAMES.map(lambda each: [each])), max_size=4), st.data()
)
def test_messages_are_read_the_same_whole_or_frame_by_frame(said, data):
    """Wherever what comes is cut, with other frames in between."""
    stream = b"".join(encode_frames(channel, *frames) for channel, frames in said)
    cut = data.draw(st.integers(0, len(stream)))
    reader, plain = FrameReader(), FrameReader()
    read = [*reader.feed_whole(stream[:cut]), *reader.feed_whole(stream[cut:])]
    assert [(channel, each) for channel, found in read for each in values_of(found)] == [
        (channel, each) for channel, found in plain.feed(stream) for each in values_of(found)
    ]


@pytest.mark.parametrize("place", ["channel", "size", "end", "long"])
def test_what_is_no_message_is_not_read_as_one(place):
    """Frames of two channels, a body of another length, a frame without its end, and one that is longer than was agreed on."""
    about = header.ContentHeader(body_size=3 + (place == "size"), properties=BASIC.Properties())
    frames = [
        encode_frames(1, BASIC.Deliver("t", 1, False, "", "q")),
        encode_frames(1 + (place == "channel"), about),
        encode_frames(1, body.ContentBody(b"abc")),
    ]
    stream = bytearray(b"".join(frames))
    if place == "end":
        stream[-1] = 0
    most = len(frames[0]) - (place == "long")
    assert decode_whole(stream, 0, most if place == "long" else 131_072) is None
