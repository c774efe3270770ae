"""Chat completion chunks of compatible servers: partial calls, content lists, stream ends."""

import json

import httpx2
import pytest
import trio

from actgent import BareAgent, tool
from actgent.errors import ModelError, ModelTimeout, StreamInterrupted
from actgent.llm.model_interface import ChatMessage, ModelRequest
from actgent.messages import Text, Thinking

HELLO = ModelRequest(messages=(ChatMessage("user", (Text("Hello."),)),))
URL = "http://localhost:1/v1"


def chunk(delta, finish=None, **more):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}


def piece(index=None, call_id=None, name=None, arguments="", **more):
    """Return a delta with one piece of a call."""
    function = {"arguments": arguments, **({"name": name} if name else {})}
    raw = {key: value for key, value in (("index", index), ("id", call_id)) if value is not None}
    return {"tool_calls": [{**raw, "type": "function", "function": function, **more}]}


async def calls_of(connect, sse, *deltas):
    """Return the name and arguments of each call of a stream."""
    reply = sse(*map(chunk, deltas), chunk({}, "tool_calls"))
    model, _ = connect("openai", reply, stream=True, base_url=URL)
    return [(call.name, call.arguments) for call in (await model.complete(HELLO)).tool_calls]


MOVE = '{"folder": "/tmp/x", "keep": 3}'
MOVED = ("move", {"folder": "/tmp/x", "keep": 3})


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(
            [piece(0, "a", "move"), piece(0, "b", None, MOVE[:9]), piece(0, "c", None, MOVE[9:])],
            id="another id in each piece",
        ),
        pytest.param(
            [piece(0, "a", "move"), piece(0, "b", "move", MOVE[:9]), piece(0, "c", "move", MOVE[9:])],
            id="another id and the name in each piece",
        ),
        pytest.param(
            [piece(None, "a", "move"), piece(None, "b", None, MOVE[:9]), piece(None, "b", None, MOVE[9:])],
            id="another id and no index",
        ),
        pytest.param(
            [piece(0, "a", "move"), piece(1, None, None, MOVE[:9]), piece(1, None, None, MOVE[9:])],
            id="another index for the arguments",
        ),
        pytest.param(
            [piece(0, "a", "mo"), piece(0, None, "ve"), piece(0, None, None, MOVE)], id="the name in pieces"
        ),
        pytest.param([piece(0, "a", "mo"), piece(0, "a", "ve", MOVE)], id="the name in pieces with its id"),
        pytest.param([piece(0, "a", "move"), piece(0, "a", "move", MOVE)], id="the name repeated"),
        pytest.param(
            [piece(0, "a"), piece(0, None, "move"), piece(0, None, None, MOVE)], id="the id before the name"
        ),
        pytest.param(
            [piece(0, "a", "move", "{}"), piece(0, None, None, MOVE[:9]), piece(0, None, None, MOVE[9:])],
            id="an empty object before the arguments",
        ),
        pytest.param(
            [piece(0, "a", "move", "{}"), piece(0, "b", None, MOVE)], id="an empty object, and another id"
        ),
        pytest.param(
            [piece(0, "a", "move", MOVE), piece(0, "a", None, MOVE)], id="the arguments once more at the end"
        ),
        pytest.param(
            [piece(0, "a", "move", MOVE), piece(0, None, None, "{}")],
            id="an empty object behind the arguments",
        ),
        pytest.param(
            [piece(0, "a", "move", MOVE), piece(0, None, "move")], id="the name once more at the end"
        ),
        pytest.param(
            [piece(0, "a", "move", "null"), piece(0, None, None, MOVE)], id="null before the arguments"
        ),
        pytest.param(
            [{"function_call": {"name": "move"}}, {"function_call": {"arguments": MOVE}}], id="the old field"
        ),
        pytest.param([piece(0, "a", "move", {"folder": "/tmp/x", "keep": 3})], id="decoded arguments"),
    ],
)
async def test_pieces_of_one_call_are_assembled(connect, sse, pieces):
    """Pieces are grouped by index. Only a name starts a new call."""
    assert await calls_of(connect, sse, *pieces) == [MOVED]


F, G = ("f", {"x": 1}), ("g", {"y": 2})


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        pytest.param(
            [piece(0, "a", "f", '{"x": 1}'), piece(0, "b", "g", '{"y"'), piece(0, "b", None, ": 2}")],
            [F, G],
            id="both numbered 0 with ids",
        ),
        pytest.param(
            [piece(0, None, "f"), piece(0, None, None, '{"x": 1}'), piece(0, None, "g"), piece(0, None, None, '{"y": 2}')],
            [F, G],
            id="both numbered 0 without ids, in pieces",
        ),
        pytest.param(
            [piece(0, None, "f", '{"x": 1}'), piece(0, None, "f"), piece(0, None, None, '{"x": 2}')],
            [F, ("f", {"x": 2})],
            id="the same tool twice, both numbered 0 without ids",
        ),
        pytest.param(
            [piece(0, "a", "f"), piece(1, "b", "g"), piece(0, "x", None, '{"x": 1}'), piece(1, "y", None, '{"y": 2}')],
            [F, G],
            id="side by side, with other ids in each piece",
        ),
        pytest.param(
            [piece(0, "call_1", "f", '{"x": 1}'), piece(1, "call_1", "g", '{"y": 2}')],
            [F, G],
            id="one id for both",
        ),
        pytest.param(
            [piece(0, "a", "f"), piece(0, "b", "g")],
            [("f", {}), ("g", {})],
            id="without arguments, both numbered 0",
        ),
    ],
)  # fmt: skip
async def test_deltas_of_two_calls_are_separated(connect, sse, pieces, calls):
    """The index, the id, or a name after complete arguments separates the deltas."""
    assert await calls_of(connect, sse, *pieces) == calls


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, "a", "f", '{"x": 1}'), piece(0, "a", None, '{"x": 2}')],
        [piece(0, "a", "f", '{"x": '), piece(0, None, "f", '{"x": 1}')],
        [piece(0, "a", None, '{"x": 1}')],
        [piece(0, None, "f"), piece(0, None, "g"), piece(0, None, None, '{"x": 1}')],
    ],
)
async def test_a_call_that_cannot_be_assembled_is_an_error_to_the_model(pieces, connect, sse):
    """No tool runs with arguments or a name that the model did not write."""
    ran = []

    @tool
    async def f(x: int = 0) -> str:
        ran.append(x)
        return "ran"

    first, second = (
        sse(*map(chunk, pieces), chunk({}, "tool_calls")),
        sse(chunk({"content": "Sorry."}, "stop")),
    )
    model, wire = connect("openai", first, second, stream=True, base_url=URL)
    async with BareAgent("clerk", llm=model, tools=[f]) as clerk:
        await clerk.run("Go.")
    assert not ran
    assert "Error" in wire.bodies[1]["messages"][-1]["content"]


@pytest.mark.parametrize("arguments", ["null", " null ", '""', "", "{}", None])
async def test_empty_arguments_in_any_notation_mean_none(connect, said, dialect, arguments):
    """null, an empty text and an empty object all mean no arguments."""
    if dialect == "anthropic":
        calls = [("c", "f", {} if arguments is None else arguments)]
    else:
        calls = [("c", "f", arguments)]
    model, _ = connect(dialect, said(dialect, "", calls=calls))
    assert (await model.complete(HELLO)).tool_calls[0].arguments == {}


# --- content --------------------------------------------------------------------------------------

THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        ([[THOUGHT], [THOUGHT, {"type": "text", "text": "Okay"}], ", here"], "Okay, here"),
        (["Okay", [{"type": "text", "text": ", here"}]], "Okay, here"),
        (["Okay", [THOUGHT], ", here"], "Okay, here"),
        ([[{"type": "text", "text": "Ok"}], [{"type": "text", "text": "ay"}]], "Okay"),
        ([["Ok", "ay"]], "Okay"),
        ([[{"type": "image_url", "image_url": {"url": "x"}}], "Okay"], "Okay"),
    ],
)
async def test_text_in_lists_and_strings_is_one_text(connect, sse, contents, text):
    """The texts are joined in stream order, equal to the streamed text."""
    shown = []

    async def show(piece, attempt):
        shown.append(piece)

    reply = sse(*(chunk({"content": each}) for each in contents), chunk({}, "stop"))
    model, _ = connect("openai", reply, stream=True, base_url=URL)
    answer = await model.complete(HELLO, on_text=show)
    assert answer.text == text == "".join(shown)


async def test_thoughts_in_the_content_go_back_to_their_model(connect, sse):
    """Each thought is one part in its position. A different model gets only the text."""
    reply = sse(
        chunk({"content": [THOUGHT]}), chunk({"content": [THOUGHT]}), chunk({"content": "Four."}), chunk({}, "stop")
    )  # fmt: skip
    model, wire = connect("openai", reply, stream=True, base_url=URL)
    answer = await model.complete(HELLO)
    assert [part.text for part in answer.parts if isinstance(part, Thinking)] == ["hmhm"]
    other, others = connect("openai", reply, stream=True, base_url=URL, model="model-2")
    chat = ModelRequest(messages=(*HELLO.messages, ChatMessage("assistant", answer.parts), *HELLO.messages))
    await model.complete(chat)
    await other.complete(chat)
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hmhm"}]}
    text = {"type": "text", "text": "Four."}
    assert wire.bodies[1]["messages"][1] == {"role": "assistant", "content": [thought, text]}
    assert others.bodies[0]["messages"][1] == {"role": "assistant", "content": "Four."}


# --- characters -------------------------------------------------------------------------------------


def raw(*datas):
    content = b"".join(b"data: " + data + b"\n\n" for data in datas)
    return {"status_code": 200, "headers": {"content-type": "text/event-stream"}, "content": content}


def raw_chunk(text):
    return b'{"choices":[{"index":0,"delta":{"content":"' + text + b'"},"finish_reason":null}]}'


DONE = (b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}', b"[DONE]")


@pytest.mark.parametrize(
    ("texts", "read"),
    [
        ([rb"Hi \ud83d", rb"\ude00!"], "Hi \U0001f600!"),
        ([rb"\ud83d", rb"", rb"\ude00"], "\U0001f600"),
        ([rb"Hi \ud83d", rb"!"], "Hi \ufffd!"),
        ([rb"Hi \ude00"], "Hi \ufffd"),
        ([rb"Hi", rb" \ud83d"], "Hi \ufffd"),
    ],
)
async def test_surrogate_halves_of_a_stream_are_joined(connect, texts, read):
    """Surrogate halves are joined across events and never shown alone. An unpaired half becomes U+FFFD."""
    shown = []

    async def show(piece, attempt):
        shown.append(piece)

    model, _ = connect("openai", raw(*map(raw_chunk, texts), *DONE), stream=True, base_url=URL)
    assert (await model.complete(HELLO, on_text=show)).text == read
    assert "".join(shown).encode().decode() in (read, read.removesuffix("\ufffd"))


async def test_surrogate_halves_of_arguments_are_joined(connect, said, dialect):
    """Surrogate halves in arguments are joined. An unpaired half in a complete body becomes U+FFFD."""
    first = rb'{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":\"\ud83d"}}]}}]}'
    second = rb'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\ude00\"}"}}]}}]}'
    model, _ = connect("openai", raw(first, second, *DONE), stream=True, base_url=URL)
    assert (await model.complete(HELLO)).tool_calls[0].arguments == {"x": "\U0001f600"}
    body = said(dialect, "Hi HALF")["json"]
    content = json.dumps(body).replace("HALF", "\\ud83d").encode()
    model, _ = connect(dialect, {"status_code": 200, "content": content})
    assert (await model.complete(HELLO)).text == "Hi \ufffd"


async def test_byte_order_mark_is_skipped(connect, said, dialect):
    """A byte order mark before a body, a stream or an event's JSON is skipped."""
    body = b"\xef\xbb\xbf" + json.dumps(said(dialect, "Hello.")["json"]).encode()
    model, _ = connect(dialect, {"status_code": 200, "content": body})
    assert (await model.complete(HELLO)).text == "Hello."
    stream = said(dialect, "Hello.", stream=True)
    stream["content"] = b"\xef\xbb\xbf" + stream["content"].replace(b"data: {", b"data: \xef\xbb\xbf{")
    model, _ = connect(dialect, stream, stream=True)
    assert (await model.complete(HELLO)).text == "Hello."


@pytest.mark.parametrize("sign", [b"[PING]", b"ping", b"keep-alive", b"PROCESSING", b" "])
async def test_keep_alive_data_is_skipped(connect, said, dialect, sign):
    """Keep-alive data that proxies send between events is skipped."""
    stream = said(dialect, "Hello.", stream=True)
    stream["content"] = stream["content"].replace(b"data: {", b"data: " + sign + b"\n\ndata: {")
    model, _ = connect(dialect, stream, stream=True)
    assert (await model.complete(HELLO)).text == "Hello."


async def test_error_contains_plain_text_of_a_broken_stream(connect):
    """Plain text that a server sends in place of an event appears in the error."""
    model, _ = connect("openai", raw(raw_chunk(b"Hi"), b"Internal Server Error"), stream=True, base_url=URL)
    with pytest.raises(StreamInterrupted, match="Internal Server Error"):
        await model.complete(HELLO)


# --- whole bodies -----------------------------------------------------------------------------------


def body(**choice):
    return {"status_code": 200, "json": {"choices": [{"index": 0, **choice}]}}


@pytest.mark.parametrize("missing", [{"finish_reason": None}, {}, {"finish_reason": ""}])
async def test_a_whole_body_without_a_finish_reason_is_an_answer(connect, missing):
    """Ollama sends such bodies. An empty one is an error."""
    model, _ = connect("openai", body(message={"content": "Hello"}, **missing), base_url=URL)
    answer = await model.complete(HELLO)
    assert (answer.text, answer.stop) == ("Hello", "end")
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    model, _ = connect("openai", body(message={"tool_calls": [call]}, **missing), base_url=URL)
    assert (await model.complete(HELLO)).stop == "tool_calls"
    model, _ = connect("openai", body(message={"content": ""}, **missing), base_url=URL)
    with pytest.raises(StreamInterrupted, match="finish_reason"):
        await model.complete(HELLO)


async def test_text_completion_answer_is_read(connect, sse):
    """`choices[0].text` is read in complete bodies and in streams."""
    model, _ = connect("openai", body(text="Hello", finish_reason="stop"), base_url=URL)
    assert (await model.complete(HELLO)).text == "Hello"
    pieces = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("Hel", "lo")]
    model, _ = connect("openai", sse(*pieces, chunk({}, "stop")), stream=True, base_url=URL)
    assert (await model.complete(HELLO)).text == "Hello"


# --- the end of a stream ----------------------------------------------------------------------------


def kept_open(stream, error=None):
    """Return a reply whose connection stays open, or breaks, after these bytes."""

    def reply(request):
        async def pieces():
            yield stream["content"]
            if error is not None:
                raise error
            await trio.sleep_forever()

        return httpx2.Response(200, headers=stream["headers"], content=pieces())

    return reply


async def test_a_stream_ends_with_its_end_marker(connect, said, dialect, autojump_clock):
    """The answer is returned at the end marker while the connection stays open."""
    model, _ = connect(dialect, kept_open(said(dialect, "Hello.", stream=True)), stream=True, timeout=60)
    started = trio.current_time()
    assert (await model.complete(HELLO)).text == "Hello."
    assert trio.current_time() - started < 1


async def test_data_after_the_end_marker_is_ignored(connect, said, dialect):
    """Errors and text after the end marker are ignored."""
    stream = said(dialect, "Hello.", stream=True)
    stream["content"] += b'data: {"error": {"message": "late"}}\n\ndata: garbage{\n\n'
    model, _ = connect(dialect, stream, stream=True)
    assert (await model.complete(HELLO)).text == "Hello."


async def test_complete_answer_without_an_end_marker_is_accepted(connect, sse, autojump_clock):
    """After the finish reason an open or broken connection is a success; before it, a failure."""
    chunks = chunk({"content": "Hello."}), chunk({}, "stop")
    complete = sse(*chunks, done=False)
    for reply in (kept_open(complete), kept_open(complete, httpx2.ReadError("reset"))):
        model, _ = connect("openai", reply, stream=True, timeout=60, base_url=URL)
        assert (await model.complete(HELLO)).text == "Hello."
    cut = sse(chunks[0], done=False)
    for reply, error in (
        (kept_open(cut), ModelTimeout),
        (kept_open(cut, httpx2.ReadError("reset")), ModelError),
    ):
        model, _ = connect("openai", reply, stream=True, timeout=60, base_url=URL)
        with pytest.raises(error):
            await model.complete(HELLO)
