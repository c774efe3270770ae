"""Answers with a field that is not what the API promises, or that quotes the key: each place, one after another."""

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
    """The paths of all values in a value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def with_value(value, path, new):
    """A copy with another value in one place."""
    if not path:
        return new
    changed = copy.deepcopy(value)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return changed


def without(value, path):
    """A copy without the value of one place."""
    changed = copy.deepcopy(value)
    at = changed
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return changed


def events_of(reply):
    """What a streamed reply says."""
    frames = re.findall(rb"^data: (\{.*\})$", reply["content"], re.MULTILINE)
    return [json.loads(frame) for frame in frames]


def replies(said, dialect, streams, change):
    """The replies that come of changing a good one in each place."""
    calls = (("c1", "add", '{"a": [1, {"b": 2}]}'), ("c2", "add", "{}"))
    reply = said(dialect, text="Hi.", calls=calls, stream=streams)
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
    """A reply that streams these events, whatever they are."""
    frames = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    headers = {"content-type": "text/event-stream"}
    return {"status_code": 200, "headers": headers, "content": frames.encode()}


def changes(value, path):
    """One place with everything that does not belong there, left out, and there twice."""
    yield from (with_value(value, path, odd) for odd in ODD)
    if path:
        yield without(value, path)


def told(error):
    """All that an error and what it came from say."""
    texts = []
    while error is not None:
        texts.append(f"{error!r} {error} {getattr(error, 'code', '')} {getattr(error, 'request_id', '')}")
        error = error.__cause__ or error.__context__
    return " ".join(texts)


@pytest.mark.parametrize("streams", [False, True])
async def test_every_place_may_be_wrong(connect, said, dialect, streams):
    """It is an answer, or a ModelError: no other exception comes out."""
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
async def test_no_error_shows_the_key(connect, said, dialect, streams, echo):
    """Whatever quotes it, no error does."""
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


def test_a_server_that_numbers_its_answers_is_taken():
    """The id is for people alone."""
    assert check_texts(ModelResponse(parts=(Text("x"),), id=123)).id == "123"


def test_token_as_user_name_in_a_url_is_not_shown():
    """It is redacted like a password."""
    told = Secrets(tuple(secrets_in("https://tok-supersecret-123456@host/v1"))).redact(
        "bad tok-supersecret-123456"
    )
    assert "supersecret" not in told
