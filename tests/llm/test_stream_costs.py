"""The cost of a streamed answer is linear in its length, for any split."""

import gc
import time

import pytest

from actgent.llm.clients.anthropic import Anthropic
from actgent.llm.clients.openai import OpenAI
from actgent.llm.http.sse import EventDecoder

SMALL, TIMES = 2_000, 8


def chat_chunk(call):
    return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}


def piece(text, **more):
    return chat_chunk({**more, "function": {"name": "f", "arguments": text}})


def named_pieces(count):
    """Return pieces of one call without an id, with its name in each piece."""
    return [piece(text, index=0) for text in ('{"x": "', *["abcd"] * count, '"}')]


def unnumbered_pieces(count):
    return [piece(text) for text in ('{"x": "', *["abcd"] * count, '"}')]


def braced_pieces(count):
    """Return pieces that might each end or begin arguments."""
    return [piece(text, index=0) for text in ('{"x": "', *["{}"] * count, '"}', *[""] * count)]


def homeless_pieces(count):
    """Return pieces without a name, each with a different index and id."""
    begin = piece('{"x": "', index=0)
    more = [
        chat_chunk({"index": at, "id": f"c{at}", "function": {"arguments": "}"}}) for at in range(1, count)
    ]
    return [begin, *more]


def unnumbered_calls(count):
    """Return calls that only their ids distinguish."""
    return [piece("{}", id=f"call-{number}") for number in range(count)]


def citations(count):
    block = {"type": "text", "text": "a"}
    begin = [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": block},
    ]
    delta = {"type": "citations_delta", "citation": {"cited_text": "a"}}
    return [*begin, *[{"type": "content_block_delta", "index": 0, "delta": delta}] * count]


def fed(client, events):
    fold = client("m", api_key="a-key-of-mine").assembler()
    begin = time.process_time()
    for event in events:
        fold.feed(event)
    return time.process_time() - begin


def decoded(count):
    """Return the CPU time of decoding one event of many lines, line by line."""
    decoder, begin = EventDecoder(), time.process_time()
    events = [event for _ in range(count) for event in decoder.feed(b"data: x\n")]
    events += decoder.feed(b"\n")
    assert len(events) == 1
    return time.process_time() - begin


@pytest.mark.parametrize(
    "cost",
    [
        pytest.param(lambda n: fed(OpenAI, named_pieces(n)), id="named pieces"),
        pytest.param(lambda n: fed(OpenAI, unnumbered_pieces(n)), id="unnumbered pieces"),
        pytest.param(lambda n: fed(OpenAI, unnumbered_calls(n)), id="unnumbered calls"),
        pytest.param(lambda n: fed(OpenAI, braced_pieces(n)), id="braced pieces"),
        pytest.param(lambda n: fed(OpenAI, homeless_pieces(n)), id="homeless pieces"),
        pytest.param(lambda n: fed(Anthropic, citations(n)), id="citations"),
        pytest.param(decoded, id="lines of one event"),
    ],
)
def test_streaming_cost_is_linear(cost):
    """Quadratic time would cost 64 times as much.

    The best of three runs counts, because the machine is shared.
    """
    gc.collect()
    gc.disable()
    try:
        small, large = (min(cost(count) for _ in range(3)) for count in (SMALL, SMALL * TIMES))
    finally:
        gc.enable()
    assert large < 3 * TIMES * max(small, 0.001)
