"""Answers with one unexpected field, or with a quoted key, for each position in turn."""

import copy
import json
import re

import pytest

from actgent.errors import ModelError
from actgent.llm.http.secret_removal import Secrets, secrets_in
from actgent.llm.http.wire_encoding import check_texts
from actgent.llm.model_interface import ChatMessage, ModelRequest, ModelResponse
from actgent.messages import Text

from .conftest import KEY

HELLO = ModelRequest(messages=(ChatMessage("user", (Text("Hello."),)),))
ODD = (
    None,
    5,
    -1.5,
    True,
    "",
    "other",
    [],
    ["x"],
    {},
    {"x": "y"},
    [{"x": None}],
    "\ud800",
    "\x00\x1b[2J",
    10**30,
)


def places(value, path=()):
    """Yield the paths of all nested values."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def with_value(value, path, new):
    """Return a copy with a different value at one path."""
    if not path:
        return new
    changed = copy.deepcopy(value)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return changed


def without(value, path):
    """Return a copy without the value at one path."""
    changed = copy.deepcopy(value)
    at = changed
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return changed


def events_of(reply):
    """Return the events of a streamed reply."""
    frames = re.findall(rb"^data: (\{.*\})$", reply["content"], re.MULTILINE)
    return [json.loads(frame) for frame in frames]


def replies(text, dialect, streams, change):
    """Yield the replies that result from changing a valid reply at each path."""
    calls = (("c1", "add", '{"a": [1, {"b": 2}]}'), ("c2", "add", "{}"))
    reply = text(dialect, text="Hi.", calls=calls, stream=streams)
    good = events_of(reply) if streams else reply["json"]
    for path in places(good):
        if path or not streams:
            for changed in change(good, path):
                yield (
                    streamed(changed)
                    if streams
                    else {"status_code": 200, "content": json.dumps(changed).encode()}
                )


def streamed(events):
    """Return a reply that streams these events."""
    frames = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    headers = {"content-type": "text/event-stream"}
    return {"status_code": 200, "headers": headers, "content": frames.encode()}


def changes(value, path):
    """Yield copies with each unexpected value at the path, and one copy without it."""
    yield from (with_value(value, path, odd) for odd in ODD)
    if path:
        yield without(value, path)


def told(error):
    """Return all text of an error and its causes."""
    texts = []
    while error is not None:
        texts.append(f"{error!r} {error} {getattr(error, 'code', '')} {getattr(error, 'request_id', '')}")
        error = error.__cause__ or error.__context__
    return " ".join(texts)


@pytest.mark.parametrize("streams", [False, True])
async def test_each_changed_field_gives_an_answer_or_a_model_error(connect, said, dialect, streams):
    """Each changed reply gives an answer or a ModelError, and no other exception."""
    tried, raw = 0, []
    for reply in replies(said, dialect, streams, changes):
        model, _ = connect(dialect, reply, stream=streams)
        try:
            answer = await model.complete(HELLO)
        except ModelError:
            pass
        except Exception as error:  # noqa: BLE001 - each is a fault, and all of them are told
            raw.append((error, reply["content"][:2_000]))
        else:
            assert all(isinstance(part.text, str) for part in answer.parts if isinstance(part, Text))
        tried += 1
    assert not raw, sorted(
        {(repr(e)[:120], __import__("traceback").extract_tb(e.__traceback__)[-1].line) for e, _ in raw}
    )
    assert tried > 200


@pytest.mark.parametrize("echo", [KEY, f"***{KEY[-6:]}"])
@pytest.mark.parametrize("streams", [False, True])
async def test_no_error_quotes_the_key(connect, said, dialect, streams, echo):
    """No error shows a key that the reply quotes."""
    errors = []
    for reply in replies(
        said, dialect, streams, lambda value, path: [with_value(value, path, f"No: {echo}!")]
    ):
        model, _ = connect(dialect, reply, stream=streams)
        try:
            await model.complete(HELLO)
        except ModelError as error:
            errors.append(told(error))
    assert errors
    assert not [text for text in errors if echo in text]


def test_numeric_response_id_is_accepted():
    """A numeric response id is accepted, because only readers use the id."""
    assert check_texts(ModelResponse(parts=(Text("x"),), id=123)).id == "123"


def test_token_as_user_name_in_a_url_is_not_shown():
    """The token is redacted like a password."""
    told = Secrets(tuple(secrets_in("https://tok-supersecret-123456@host/v1"))).redact(
        "bad tok-supersecret-123456"
    )
    assert "supersecret" not in told
