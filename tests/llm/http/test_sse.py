"""Server-sent events, with any split of the bytes by the network."""

import pytest
from hypothesis import given, strategies as st

from actgent.llm.http import sse
from actgent.llm.http.sse import EventDecoder, EventTooLarge


def decode(*chunks):
    decoder = EventDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + list(decoder.close())


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data:a\ndata:  b\n\n", [b"a\n b"]),
        (b": comment\nevent: x\nid: 1\nretry: 3\ndata: a\n\n\n\n", [b"a"]),
        (b"data: a", [b"a"]),
        (b"data: a\n", [b"a"]),
        (b"event: x\n\n", []),
        (b"", []),
        ("data: \u2028ü\x0b\x0c\x1c\x85\n\n".encode(), ["\u2028ü\x0b\x0c\x1c\x85".encode()]),
    ],
)
def test_events_with_each_line_end_are_read(text, events):
    """Events with each kind of line end, comments, several data lines, or no final blank line are read."""
    assert decode(text) == events
    assert decode(*(text[i : i + 1] for i in range(len(text)))) == events


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1)),
    st.data(),
)
def test_every_split_of_the_bytes_gives_the_same_events(texts, data):
    whole = "".join(f"data: {text}\r\n\r\n" for text in texts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    chunks = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert decode(*chunks) == [text.encode() for text in texts]


def test_event_size_is_bounded(monkeypatch):
    """One event has a maximum size. The number of events has no limit."""
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    assert len(decode(*[b"data: " + b"x" * 20 + b"\n\n"] * 50)) == 50
    with pytest.raises(EventTooLarge):
        decode(*[b"data: " + b"x" * 20 + b"\n"] * 6)
    with pytest.raises(EventTooLarge):
        decode(*[b"x" * 20] * 6)
