import os
import pickle
from types import MappingProxyType

import pytest

from actgent.errors import ModelError
from actgent.messages import (
    NO_METADATA,
    Failure,
    File,
    Image,
    Message,
    Priority,
    Reply,
    Sender,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    new_id,
    to_parts,
)


def test_ids_are_unique_and_sort_by_age():
    """Later ids of one process are greater."""
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert ids == sorted(ids)


def test_forked_process_generates_other_ids():
    """A forked process never repeats an id of its parent."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read().split("-")[0] != new_id().split("-")[0]


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("URGENT", Priority.URGENT),
        ("high", Priority.HIGH),
        (" Low\n", Priority.LOW),
        ("normal", Priority.NORMAL),
        ("", Priority.NORMAL),
        ("asap", Priority.NORMAL),
        ("_missing_", Priority.NORMAL),
        (3, Priority.LOW),
    ],
)
def test_priority_text_is_read_in_any_case(text, level):
    """A text that is not the name of a level is NORMAL."""
    assert Priority(text) is level
    assert Priority.of(text) is level


@pytest.mark.parametrize("value", [4, -1, None, 1.5])
def test_priority_rejects_other_types(value):
    """A wrong number is an error, not NORMAL."""
    with pytest.raises(ValueError, match="Priority"):
        Priority(value)


def test_priorities_sort_by_urgency():
    """The most urgent priority is the least value."""
    assert sorted([Priority.LOW, Priority.URGENT, Priority.NORMAL, Priority.HIGH]) == [
        Priority.URGENT,
        Priority.HIGH,
        Priority.NORMAL,
        Priority.LOW,
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ada", "user"),
        ("assistant", "assistant"),
        ("Agent", "agent"),
        ("TOOL", "tool"),
        (" system ", "user"),
        ("System", "user"),
        ("user", "user"),
        ("system2", "user"),
    ],
)
def test_plain_sender_name_is_a_user(name, kind):
    """Only `assistant`, `agent` and `tool` are kinds, in any case. No name makes a sender the system."""
    assert Sender.named(name) == Sender(name, kind)


def test_sender_of_an_unknown_kind_is_rejected():
    """The kind of a sender selects a role, so it must be one of five."""
    with pytest.raises(ValueError, match="kind"):
        Sender("ada", "robot")


def test_to_parts_accepts_text_or_parts():
    """Content becomes a flat tuple of parts."""
    image = Image(media_type="image/png", data=b"x")
    assert to_parts("hi") == (Text("hi"),)
    assert to_parts(image) == (image,)
    assert to_parts(["see", image, ["nested"]]) == (Text("see"), image, Text("nested"))
    assert to_parts([]) == ()


@pytest.mark.parametrize("content", [None, 5, {"text": "x"}, [1], b"bytes"])
def test_to_parts_names_the_accepted_types(content):
    """A value of another type is a TypeError that names the accepted types."""
    with pytest.raises(TypeError, match="content must be a string or parts"):
        to_parts(content)


@pytest.mark.parametrize("kind", [Image, File])
@pytest.mark.parametrize("value", [{}, {"data": b"x", "url": "https://example.org/x"}])
def test_media_has_either_bytes_or_an_address(kind, value):
    """Both or none of them is an error that names the class."""
    with pytest.raises(ValueError, match=f"{kind.__name__} takes either"):
        kind(media_type="image/png", **value)


def test_a_message_shows_its_parts_by_kind():
    """The texts are joined. Calls and results are in their order."""
    call, result = ToolCall("add", {"a": 1}), ToolResult(call_id="1", tool_name="add", content="3")
    message = Message(session_id="s", sender=Sender("ada"), parts=(Text("a"), call, Text("b"), result))
    assert (message.text, message.tool_calls, message.tool_results) == ("ab", (call,), (result,))
    assert message.priority is Priority.NORMAL


@pytest.mark.parametrize(
    ("content", "error", "text"),
    [("3", None, "3"), ("", "boom", "Error: boom"), ("half", "boom", "Error: boom\nhalf")],
)
def test_tool_result_text_has_error_and_content(content, error, text):
    """The text has the error first, then the content."""
    assert ToolResult(call_id="1", tool_name="t", content=content, error=error).text == text


def test_usage_sums_counts_and_keeps_unknown_prices():
    """Counts are summed; one unknown price makes the sum unknown."""
    once = Usage(input_tokens=3, output_tokens=2, cached_tokens=1, cost=0.5)
    assert once + once == Usage(input_tokens=6, output_tokens=4, cached_tokens=2, cost=1.0)
    assert (once + Usage(cost=None)).cost is None


def test_a_sender_and_a_failure_print_as_short_text():
    """A printed sender is its name, and a printed failure its kind and its error."""
    assert str(Sender("ada")) == "ada"
    assert str(Failure(kind="model", error=ModelError("no answer"), message_id="m")) == "model: no answer"


def test_a_reply_is_its_text():
    """`print` of a reply prints its text."""
    assert str(Reply(text="hello")) == "hello"


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("urgent", Priority.URGENT),
        (" High ", Priority.HIGH),
        ("whenever", Priority.NORMAL),
        (3, Priority.LOW),
    ],
)
def test_a_message_reads_its_priority(value, read):
    """Text is accepted in any case. Unknown text is NORMAL."""
    message = Message(session_id="s", sender=Sender("ada"), parts="hello", priority=value)
    assert message.priority is read


@pytest.mark.parametrize("parts", ["hello", Text("hello"), [Text("hello")], ["hel", Text("lo")]])
def test_the_parts_of_a_message_are_a_tuple_of_parts(parts):
    """Any accepted content becomes a tuple, so it cannot change later."""
    message = Message(session_id="s", sender=Sender("ada"), parts=parts)
    assert type(message.parts) is tuple
    assert message.text == "hello"
    assert all(isinstance(part, Text) for part in message.parts)


# --- no metadata -------------------------------------------------------------------------


def test_no_metadata_equals_each_empty_mapping():
    """Empty metadata equals only empty mappings, from both sides, and cannot be a key of a dictionary."""
    none = NO_METADATA
    for empty in (NO_METADATA, {}, MappingProxyType({}), pickle.loads(pickle.dumps(NO_METADATA))):
        assert none == empty
        assert empty == none
    for other in ({"a": 1}, MappingProxyType({"a": None}), [], (), None, ""):
        assert none != other
        assert other != none
    with pytest.raises(TypeError, match="unhashable"):
        hash(NO_METADATA)


def test_no_metadata_is_compared_without_a_copy():
    """The journal checks the metadata of each message that it writes, so the check must be fast."""

    class Counted(dict):
        def __iter__(self):
            raise AssertionError("it was read")

        items = keys = values = __iter__

    none = NO_METADATA
    assert none == Counted()
    assert none != Counted(a=1)
