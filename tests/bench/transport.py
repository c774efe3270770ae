"""TRANSPORT: the CPU of a model call for each way to use a provider's SDK. A program of its own: `python tests/bench/transport.py`.

Each way sends the same conversation to a provider on loopback, which runs in a process of its own, and reads the whole answer.
The ways take turns; a ratio is the median of the ratios within each round. Python calls are counted too, because other programs
on the machine do not change their number.

    actgent             `complete` of actgent's client: encoding, admission by the rate limiter, transport, decoding
    post                its transport: `client.post(path, content=..., cast_to=httpx2.Response)` with a body that msgspec encoded
    raw response        `with_raw_response.create(**body)` in place of `post`
    streaming response  `with_streaming_response.create(**body)` in place of `post`
    extra_body          the same as `raw response`, with the conversation in `extra_body`, which the SDK does not transform
    create              `create(**body)` with the SDK's own types: what a program without actgent writes

The program ends with 1 if actgent's call costs more than 1.15 times `create`.
"""

import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from subprocess import PIPE
from types import FrameType
from typing import Any

import attrs
import httpx2
import trio
from measure import long

from actgent.llm.clients.anthropic import Anthropic
from actgent.llm.clients.openai import OpenAI
from actgent.llm.clients.openai_responses import OpenAIResponses
from actgent.llm.http.base_provider_client import Remote
from actgent.llm.http.wire_encoding import Body, to_json
from actgent.llm.model_interface import ChatMessage, ModelRequest
from actgent.messages import Text
from actgent.testing import open_provider

ROUNDS, CALLS = 15, 8
SIZES = (1, 201)
"""Messages in the conversation."""
SDK_BAR = 1.15
"""Times the CPU of `create` that a call of actgent may cost."""
SWITCH_BAR = 1.3
"""Times the CPU of today's call that another transport may cost to replace it."""
TRANSPORTS = ("raw response", "streaming response", "extra_body")
ANSWER = long(0) + long(1)
Way = Callable[[], Awaitable[object]]


async def serve() -> None:
    """Run a provider on loopback and print its port."""
    async with open_provider(lambda _: ANSWER, keep=1) as provider:
        print(provider.port, flush=True)
        await trio.sleep_forever()


@attrs.frozen
class Api:
    """One API of a provider."""

    title: str
    client: type[Remote]
    base: str
    """Path of the API's base URL."""
    resource: Callable[[Any], Any]
    """Returns the resource of an SDK client that has `create`."""


APIS = (
    Api("OpenAI chat completions", OpenAI, "/v1", lambda sdk: sdk.chat.completions),
    Api("OpenAI responses", OpenAIResponses, "/v1", lambda sdk: sdk.responses),
    Api("Anthropic messages", Anthropic, "", lambda sdk: sdk.messages),
)


def conversation(size: int) -> ModelRequest:
    """Return a chat of `size` messages of 400 characters, user and assistant in turn."""
    roles = ("user", "assistant")
    messages = tuple(ChatMessage(roles[number % 2], (Text(long(number)),)) for number in range(size))
    return ModelRequest(system="You are a helpful assistant.", messages=messages)


async def drop(text: str, attempt: int) -> None:
    """Receive streamed text."""
    await trio.lowlevel.checkpoint()


def ways(api: Api, model: Remote, chat: ModelRequest, *, streams: bool) -> Mapping[str, Way]:
    """Return each way to make the same call."""
    sdk = model._sdk.client
    resource = api.resource(sdk)

    def body() -> Body:
        fields = model.stream_fields() if streams else {}
        return {"model": model.model, **model.encode(chat), **fields}

    async def actgent() -> None:
        await model.complete(chat, on_text=drop if streams else None)

    async def post() -> None:
        content = to_json(body())
        await read(await sdk.post(model.path, content=content, cast_to=httpx2.Response, stream=streams))

    async def raw_response() -> None:
        await read((await resource.with_raw_response.create(**body())).http_response)

    async def streaming_response() -> None:
        async with resource.with_streaming_response.create(**body()) as response:
            await read(response.http_response)

    async def extra_body() -> None:
        fields = body()
        needed = {name: fields[name] for name in ("model", "max_tokens", "stream") if name in fields}
        needed |= {model.conversation: []}
        await read((await resource.with_raw_response.create(**needed, extra_body=fields)).http_response)

    async def create() -> None:
        answer = await resource.create(**body())
        if streams:
            async for _ in answer:
                pass

    return {
        "actgent": actgent,
        "post": post,
        "raw response": raw_response,
        "streaming response": streaming_response,
        "extra_body": extra_body,
        "create": create,
    }


async def read(response: httpx2.Response) -> None:
    """Read a response to its end."""
    async for _ in response.aiter_bytes():
        pass
    await response.aclose()


async def count_calls(way: Way) -> int:
    """Return the number of Python calls of one call of the model."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        await way()
    finally:
        sys.setprofile(None)
    return count


async def cpu_us(way: Way) -> float:
    """Return CPU microseconds of one call, the mean of a batch."""
    started = time.process_time()
    for _ in range(CALLS):
        await way()
    return (time.process_time() - started) / CALLS * 1e6


async def compare(found: Mapping[str, Way]) -> dict[str, list[float]]:
    """Return CPU microseconds of each way in each round."""
    for way in found.values():
        await way()
    rounds = [{name: await cpu_us(way) for name, way in found.items()} for _ in range(ROUNDS)]
    return {name: [each[name] for each in rounds] for name in found}


def ratio_of_calls(us: Mapping[str, list[float]], transport: str) -> float:
    """Return the CPU of a call of actgent with another transport over the CPU of a call today."""
    rows = zip(us["actgent"], us["post"], us[transport], strict=True)
    return statistics.median((today - post + other) / today for today, post, other in rows)


async def main() -> bool:
    """Print the figures of each API and return True if actgent keeps its bar."""
    kept = []
    async with trio.open_nursery() as nursery:
        command = [sys.executable, __file__, "--serve"]
        process = await nursery.start(partial(trio.run_process, command, stdout=PIPE))
        port = int(await process.stdout.receive_some())
        for api in APIS:
            model = api.client("m", base_url=f"http://127.0.0.1:{port}{api.base}", api_key="any")
            for size in SIZES:
                for streams in (False, True):
                    found = ways(api, model, conversation(size), streams=streams)
                    us = await compare(found)
                    calls = {name: await count_calls(way) for name, way in found.items()}
                    count, form = f"{size} message{'s' * (size > 1)}", "streamed" if streams else "whole"
                    kept.append(report(f"{api.title}, {count}, {form}", us, calls))
            await model.aclose()
        nursery.cancel_scope.cancel()
    return all(kept)


def report(title: str, us: Mapping[str, list[float]], calls: Mapping[str, int]) -> bool:
    """Print the figures of one call and return True if actgent keeps its bar."""
    print(title)
    for name, values in us.items():
        text = f"    {name:20}{statistics.median(values):8.0f} us {calls[name]:8} Python calls"
        if name in TRANSPORTS:
            ratio = ratio_of_calls(us, name)
            text += f"   call with it / call today: {ratio:.2f}{' (within the bar)' if ratio <= SWITCH_BAR else ''}"
        print(text)
    ratio = statistics.median(ours / sdk for ours, sdk in zip(us["actgent"], us["create"], strict=True))
    is_kept = ratio <= SDK_BAR
    print(f"    actgent / create: {ratio:.2f}, bar {SDK_BAR}: {'pass' if is_kept else 'FAIL'}", flush=True)
    return is_kept


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        trio.run(serve)
    else:
        sys.exit(0 if trio.run(main) else 1)
