"""Use an agent in FastAPI under hypercorn, on trio. The agent runs in the event loop of the server, without a portal.

`hypercorn --worker-class trio hypercorn_service:app` starts the service. As a script, the program sends one request to
the service and exits. If a client disconnects, the server cancels the response, and thus the turn.
"""

import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from hypercorn.config import Config
from hypercorn.trio import serve

from actgent import BareAgent, ScriptedLLM, Token

agent = BareAgent("clerk", llm=ScriptedLLM(["Good morning, how can I help?"], repeat=True, chunk=8))


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
    async with agent:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/ask")
async def ask(question: str) -> str:
    return str(await agent.run(question))


@app.get("/stream")
async def stream(question: str) -> StreamingResponse:
    async def pieces() -> AsyncGenerator[str, None]:
        async with agent.stream(question) as events:
            async for event in events:
                if isinstance(event, Token):
                    yield event.text

    return StreamingResponse(pieces(), media_type="text/plain")


def fetch(url: str) -> str:
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - a URL of this process
        return str(answer.read(), "utf-8")


async def main() -> None:
    config, ended = Config(), trio.Event()
    config.bind, config.errorlog = ["127.0.0.1:0"], None
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(lambda task_status: run(config, ended, task_status))
        for path in ("ask", "stream"):
            url = f"{address}/{path}?question=Hello"
            print(f"{path}: {await trio.to_thread.run_sync(fetch, url)}")
        ended.set()


async def run(config: Config, ended: trio.Event, task_status: "trio.TaskStatus[list[str]]") -> None:
    await serve(app, config, shutdown_trigger=ended.wait, task_status=task_status)  # type: ignore[arg-type]


if __name__ == "__main__":
    trio.run(main)
